"""Every hypothesis on every wrong tensor of a case: how much of it is left unexplained?

In: a case, its targets, what its ranks returned and the metrics of that. Out: rows of `hypotheses/`; none where every
tensor is within rounding, where the problem is too large, or where the case asks for none.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS, REFERENCE_ERROR, effective_dtype
from accuracy.explain import beyond
from accuracy.explain.hypothesis import backward, blocks, cast, constant, mask, merge, moved
from accuracy.explain.hypothesis.attention import MOST_PAIRS, MOST_SCORES, Attention
from accuracy.explain.hypothesis.base import FORWARD, Asked, Hypothesis, gradients_of
from accuracy.measurement.compare import Compared, is_padded, joined
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import EXPLAINS, FOLLOWS, RULED_OUT, SAME, Row
from accuracy.world.base import Results

FAMILIES: tuple[tuple[str, Callable[[Asked], Iterator[Hypothesis]]], ...] = (
    ("factor", constant.factors),
    ("scale", constant.scales),
    ("mask", mask.masks),
    ("heads", moved.heads),
    ("shard", moved.shards),
    ("partial", backward.of_partials),
    ("merge", merge.hypotheses),
    ("backward", backward.hypotheses),
    ("layout", moved.layouts),
    ("padding", constant.normalisers),
    ("zero", moved.zeros),
    ("cast", cast.of_stages),
    ("cast", cast.between_blocks),
    ("blocks", blocks.hypotheses),
    ("pairs", mask.pairs),
    ("rows", constant.row_factors),
    ("given", backward.saved_values),
)
QUICK = ("factor", "mask", "blocks")
"""Families that are tried on large problems."""
WALK = 1.5  # the margin of `accuracy.verdict.rule.excess` over the random walk of the merges
MOST_COMPARED, MOST_ROWS = 32, 12  # of a tensor: hypotheses that are compared with each other, rows


def answer(observation: Observation, options: None) -> Answer:
    """Return rows of `hypotheses/`, and the column `beyond` of the results where there is a bound to be beyond."""
    case, targets, results = observation.case, observation.targets, observation.results
    columns = {} if case.inputs_dtype else beyond.columns_of(observation)
    return Answer(columns, tables={"hypotheses": rows(case, targets, results, observation.compared)})


def rows(case: Case, targets: Targets, results: Sequence[Results], compared: Mapping[str, Compared]) -> list[Row]:
    """Try all hypotheses on what a case's ranks returned; return rows of `hypotheses/`."""
    unknown = {"head_dim_v", "sinks", "attn_mask"} & set(case.problem.features)
    if case.problem.queries * case.problem.seqlen > MOST_PAIRS or unknown:
        return []
    expected = {name: _expected(case, each, name) for name, each in compared.items() if name != "delta"}
    errors = {name: np.nan_to_num(compared[name].columns["error_rel"], posinf=np.inf) for name in expected}
    wrong = tuple(name for name, limit in expected.items() if (errors[name] > RULED_OUT * limit).any())
    if not wrong:
        return []
    every = {name: x.detach().cpu().double() for name, x in joined(case, results).items()}
    returned = {name: x for name, x in every.items() if x.isfinite().all()}
    attention, case_id = _attention(case, targets), case.id
    if is_padded(case):  # zeros stand between ranks' tokens: what is tried is of no rank
        alone = replace(case.variant, sharding="contiguous")
        case = replace(case, world_size=1, variant=alone, problem=replace(case.problem, padding=None))
    if attention.count > MOST_SCORES:  # heads are computed alike: one group of the first batch item stands for all
        share = case.problem.heads // case.problem.heads_kv
        attention = attention.of_first_group(share)
        returned = {name: x[:1, :, : 1 if name in ("dk", "dv") else share] for name, x in returned.items()}
    here = tuple(name for name in wrong if name in returned)
    forward = tuple(name for name in here if name in FORWARD)
    asked = Asked(case, attention, returned, here, bool(set(wrong) & set(FORWARD)), expected)
    tried = {name: Tried(asked, name) for name in here}
    _try(replace(asked, wrong=forward), tried)
    if asked.forward_wrong:
        _consequences(asked, tried, forward)
    explained = {name for name, each in tried.items() if each.found and each.found[0].explains}
    _try(replace(asked, wrong=tuple(name for name in here if name not in {*forward, *explained})), tried)
    return [row for each in tried.values() for row in each.rows(case_id)]


def _try(asked: Asked, tried: Mapping[str, "Tried"]) -> None:
    """Compare all hypotheses with the tensors that are asked about."""
    for family, hypotheses in FAMILIES if asked.wrong else ():
        for hypothesis in hypotheses(asked) if family in QUICK or not asked.is_part else ():
            for name in asked.wrong:
                if name in hypothesis.predicts:
                    tried[name].compare(family, hypothesis, hypothesis.prediction(name))


def _consequences(asked: Asked, tried: Mapping[str, "Tried"], forward: Sequence[str]) -> None:
    """Compare the gradients with what a wrong forward makes of them: from what it returned, or with its own cause."""
    best = {each.hypothesis.name: each for name in forward for each in tried[name].found if each.explains}
    follow = "the gradients are what a correct backward makes of the returned out and lse"
    for name in set(asked.wrong) - set(forward):
        if "out" in asked.returned:
            base, rounded = asked.bases[-1][1], _rounded_again(asked)
            follows = Hypothesis(FOLLOWS, follow, gradients_of(base))
            tried[name].compare("follows", follows, base.tensor(name), rounded.tensor(name))
        for each in best.values():
            if name in each.hypothesis.predicts:
                tried[name].compare(each.family, each.hypothesis, each.hypothesis.prediction(name))


@dataclass(frozen=True)
class Found:
    """A hypothesis on a tensor: its prediction, what that leaves, and what rounding of it explains."""

    family: str
    hypothesis: Hypothesis
    prediction: Tensor
    residual: float
    limit: float

    @property
    def explains(self) -> bool:
        """Whether it leaves nothing but rounding."""
        return self.residual <= EXPLAINS * self.limit

    @property
    def order(self) -> tuple[float, int]:
        """Sort key: residual over limit, then the number of fitted numbers."""
        return max(self.residual / self.limit, EXPLAINS), self.hypothesis.freedom


class Tried:
    """The hypotheses on one wrong tensor, best first: of those that leave nothing but rounding, the one with the fewest
    fitted numbers."""

    def __init__(self, asked: Asked, name: str) -> None:
        self.asked, self.name, self.limit = asked, name, asked.expected[name]
        self.plain = [base.tensor(name) for _, base in asked.bases]  # with nothing else wrong
        self.norm = self.plain[0].norm()
        self.found: list[Found] = []
        self.count = 0

    def compare(self, family: str, hypothesis: Hypothesis, prediction: Tensor, rounded: Tensor | None = None) -> None:
        """Keep a hypothesis if it is among the best. A large prediction rounds as much more as it is larger; rounded:
        the prediction from inputs that are rounded otherwise."""
        limit = self.limit * max(1.0, float(prediction.norm() / self.norm))
        if rounded is not None:
            limit = max(limit, _walk(self.asked.case) * self._distance(prediction, rounded))
        if hypothesis.name != FOLLOWS and any(self._distance(prediction, each) <= limit for each in self.plain):
            return  # it changes nothing in this tensor
        residual = self._distance(self.asked.returned[self.name], prediction)
        self.count += 1
        if math.isfinite(residual):
            found = Found(family, hypothesis, prediction, residual, limit)
            if len(self.found) < MOST_COMPARED or found.order < self.found[-1].order:
                insort(self.found, found, key=lambda each: each.order)
                del self.found[MOST_COMPARED:]

    def _distance(self, one: Tensor, other: Tensor) -> float:
        return float((one - other).norm() / self.norm)

    def rows(self, case_id: str) -> list[Row]:
        """How much each of the best leaves, and how far its prediction is from that of the first; always with the best
        whose prediction is another one."""
        from_best = [self._distance(each.prediction, self.found[0].prediction) for each in self.found]
        rivals = [index for index, each in enumerate(self.found) if from_best[index] > SAME * each.limit]
        return [
            {
                "case_id": case_id, "tensor": self.name, "family": each.family, "hypothesis": each.hypothesis.name,
                "cause": each.hypothesis.cause, "parameter": each.hypothesis.parameter,
                "freedom": each.hypothesis.freedom, "residual": each.residual, "expected": each.limit,
                "from_best": from_best[index], "tried": self.count,
            }
            for index, each in enumerate(self.found)
            if index < MOST_ROWS or index in rivals[:1]
        ]  # fmt: skip


def _rounded_again(asked: Asked) -> Attention:
    """The gradients' base with each element of the returned out and lse off by a unit roundoff, this way or that: a
    wrong lse can make terms that cancel many orders larger than their sum."""
    base = asked.bases[-1][1]
    assert base.saved is not None
    generator = torch.Generator().manual_seed(0)
    unit = FORMATS[asked.case.dtype].unit_roundoff
    out, lse = (x * (1 + unit * torch.randn(x.shape, generator=generator, dtype=x.dtype)) for x in base.saved)
    return base.but(saved=(out, lse))


def _attention(case: Case, targets: Targets) -> Attention:
    """The reference's mathematics on the case's inputs, on the CPU."""
    problem = case.problem
    q, k, v, dout = (x.detach().cpu().double().transpose(1, 2) for x in targets.inputs.tensors)
    begin, end = seen_keys(problem.queries, problem.seqlen, **problem.seen_by).T[..., None]
    key = torch.arange(problem.seqlen)
    heads = torch.arange(problem.heads) // (problem.heads // problem.heads_kv)
    counts = ((key >= begin) & (key < end)).double()
    return Attention(q, k, v, dout, problem.softmax_scale, counts, heads, problem.softcap)


def _expected(case: Case, compared: Compared, name: str) -> float:
    """The relative error of a healthy schedule: single device's, or the floor where that is larger, times the random
    walk of the merges, as `accuracy.verdict.rule.excess` derives it. What is float32 inside rounds as float32."""
    columns = compared.columns
    least = max(float(columns["single_device_rel"][-1]), float(columns["floor_rel"][-1]), REFERENCE_ERROR)
    form = FORMATS[effective_dtype(name, case.dtype)]
    inside = FORMATS["float32"]
    bits = compared.significand_bits[-1]
    if form.precision > inside.precision >= bits > FORMATS["float16"].precision:
        least = max(least, inside.unit_roundoff)
    return _walk(case) * least


def _walk(case: Case) -> float:
    """How many roundings those of all merges amount to; a schedule may cut the keys of a rank into parts."""
    options = dict(case.variant.options)
    parts = int(options.get("splits") or 1)
    if chunk := options.get("key_chunk"):
        parts = -(-case.problem.seqlen // case.world_size // int(chunk))
    return WALK * math.sqrt(1 + 2 * (max(1, parts) * case.world_size - 1))
