"""At which batch-mates, lengths, chunks, pages, splits and places in a batch do a sequence's bits change?

A path is run again and again with one thing varied that may not change the meaning of what is compared: the rows of the
first sequence of the batch. A ladder of powers of two says between which values bits change; bisection says where: the
first value whose bits are others than those of the value before it. Out: a row for each such boundary and tensor, with
the difference across it and the errors on both sides; a row without a value says that no probe found one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from accuracy.core import plugins, sharding
from accuracy.core.case import Case, Part, Variant
from accuracy.core.dtype import FromZero
from accuracy.core.errors import one_line
from accuracy.inputs import drawing
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import Named, Targets
from accuracy.paths import drift
from accuracy.paths.other_path import HEALTHY, run
from accuracy.results.table import Row
from accuracy.variant import cached
from accuracy.variant.base import schedule_of

FORWARD, ROWS, ALL = ("out", "lse"), ("out", "lse", "dq"), drift.TENSORS


@dataclass(frozen=True)
class Axis:
    """One thing that varies. first: its least value; changed: the case with a value; tensors: its q, k, v, dout, of the
    case's own; names: of the tensors whose rows are compared; batch: the item that has these rows; last:
    whether only the last row is compared."""

    first: int
    changed: Callable[[Case, int, int], Case]
    tensors: Callable[[Case, Sequence[Tensor], int, int], Sequence[Tensor]]
    names: tuple[str, ...]
    batch: Callable[[int], int] = lambda value: 0
    last: bool = False
    refused: Callable[[Case], str | None] = lambda case: None


OTHER_SHAPES = True


@dataclass(frozen=True)
class Options:
    """Up to which value something is varied, 0: not at all.

    batchmates: further sequences of the batch; order: the sequence's place among so many others; length: tokens behind
    it; queries: of its last query's kernel call; chunk: queries of a step; pages: keys of a page; splits: parts of the
    keys.
    """

    batchmates: FromZero = 0
    order: FromZero = 0
    length: FromZero = 0
    queries: FromZero = 0
    chunk: FromZero = 0
    pages: FromZero = 0
    splits: FromZero = 0


def answer(observation: Observation, options: Options) -> Answer:
    """Return the rows of `boundaries/`."""
    return Answer(tables={"boundaries": rows(observation.case, observation.targets, options)})


def rows(case: Case, targets: Targets, options: Options) -> list[Row]:
    """Return the boundaries of every axis that is asked for."""
    asked = ((name, getattr(options, name)) for name in AXES)
    return [row for name, most in asked if most for row in _of_axis(name, most, case, targets)]


def _of_axis(name: str, most: int, case: Case, targets: Targets) -> Iterator[Row]:
    axis, plain = AXES[name], replace(case, observers=(), against=None)
    plain = replace(plain, problem=replace(plain.problem, batch=1))
    about = {"case_id": case.id, "axis": name, "first": axis.first, "last": most}
    reason = axis.refused(plain)
    if plain.world == "processes" and plain.world_size > 1:
        reason = reason or "a function of several ranks is not run again with other shapes; use one rank"
    if reason:
        yield {**about, "runs": 0, "reason": reason}
        return
    values = [value for value in range(axis.first, most + 1) if _can(axis.changed(plain, value, most))]
    probe = _Probe(axis, most, plain, targets, values)
    try:
        found = list(probe.boundaries()) if len(values) > 1 else []
    except Exception as error:  # whatever a foreign function does where it is called otherwise
        yield {**about, "runs": len(probe.seen), "reason": f"{name}={probe.at}: {one_line(error)}"[:500]}
        return
    about |= {"runs": len(probe.seen), "reason": "" if len(values) > 1 else "the path can do no other value"}
    yield from ({**about, "before": a, "value": b, **row} for a, b in found for row in probe.across(a, b))
    if not found:
        yield about


def _can(case: Case) -> bool:
    """Return whether the path can run it."""
    schedule = schedule_of(case.variant.forward)
    shared = sharding.unsupported(case.variant.sharding, case.problem.seqlen, case.world_size)
    unknown = any(feature not in schedule.features for feature in case.problem.features)
    is_function = case.variant.forward.name == "callable"
    return shared is None and (is_function or (not unknown and schedule.unsupported(case) is None))


@dataclass
class _Probe:
    """Runs of one axis. seen: by value, the compared rows; at: the value that is run."""

    axis: Axis
    most: int
    case: Case
    targets: Targets
    values: list[int]
    seen: dict[int, Named] = field(default_factory=dict)
    at: int = 0

    def boundaries(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of neighbouring values whose bits differ: the first one between each two rungs of the ladder."""
        last = len(self.values) - 1
        rungs = sorted({0, last, *(2**power for power in range(last.bit_length()) if 2**power < last)})
        for begin, end in pairwise(rungs):
            if self._same(begin, end):
                continue
            low, high = begin, end
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._same(middle, begin) else (low, middle)
            yield self.values[low], self.values[high]

    def across(self, before: int, value: int) -> Iterator[Row]:
        """Yield what changes from a value to the next, tensor by tensor."""
        healthy = self.targets.single_device(replace(self.case, kernel=HEALTHY))
        natural = self.targets.natural(self.case.problem)
        for name in self.seen[value]:
            a, b = self.seen[value][name], self.seen[before][name]
            reference, alone = (x[name][:1, self._rows(name)] for x in (self.targets.reference, healthy))
            found = drift.rows_of(name, self.case.dtype, a, b, reference, alone, natural[name])
            numbers = drift.numbers(found, slice(None))
            if numbers["drift_differ"]:
                norm = float(reference.norm())
                error = float((a.double() - reference).norm()) / norm if norm else 0.0
                yield {"tensor": name, "elements": a.numel(), "error_rel": error, **{key: numbers[key] for key in KEPT}}

    def _same(self, one: int, other: int) -> bool:
        """Return whether no bit differs between the runs at two of the values."""
        a, b = (self._at(self.values[each]) for each in (one, other))
        return not any(bool(drift.differing(a[name], b[name]).any()) for name in a)

    def _at(self, value: int) -> Named:
        if value not in self.seen:
            self.at = value
            case = self.axis.changed(self.case, value, self.most)
            own, item = [x[:1] for x in self.targets.given.tensors], self.axis.batch(value)
            found = run(case, self.axis.tensors(case, own, value, self.most))
            names = [name for name in found if name in self.axis.names]
            self.seen[value] = {name: found[name][item : item + 1, self._rows(name)].clone() for name in names}
        return self.seen[value]

    def _rows(self, name: str) -> slice:
        """Return the tokens of the case's own rows."""
        if name not in ROWS:
            return slice(None)
        return slice(-1, None) if self.axis.last else slice(0, self.case.problem.queries)


KEPT = ("drift_differ", "drift_ulp", "drift_max", "drift_rel", "drift_row_token", "drift_error_rel", "drift_nearer")


def _with_problem(case: Case, **changes: Any) -> Case:
    return replace(case, problem=replace(case.problem, **changes))


def _more(case: Case, seed: int, **changes: Any) -> list[Tensor]:
    """Return tensors of another sequence or more tokens, drawn as the case's."""
    problem = replace(case.problem, **changes)
    drawn = drawing.draw(case.inputs, problem, seed)
    return list(drawing.round_to(drawn, case.dtype, case.device).tensors)


def _batch(case: Case, own: Sequence[Tensor], mates: int, place: int) -> list[Tensor]:
    """Return the own sequence at a place among others."""
    others = _more(case, case.seed + 1, batch=mates) if mates else [x[:0] for x in own]
    return [torch.cat([y[:place], x, y[place:]]) for x, y in zip(own, others, strict=True)]


def _longer(case: Case, own: Sequence[Tensor], value: int, most: int) -> list[Tensor]:
    if not value:
        return list(own)
    more = _more(case, case.seed + 1, seqlen=most)
    return [torch.cat([x, y[:, :value]], 1) for x, y in zip(own, more, strict=True)]


def _only_plain_causal(case: Case) -> str | None:
    if case.problem.mask != "causal" or case.problem.seqlen_q is not None or case.problem.documents:
        return "needs problem.mask=causal, as many queries as keys and one document: later tokens are not seen"
    return None


def _option(name: str) -> Axis:
    """Of a variant's knob; single_device gets it from the cached path on the same kernel."""

    def changed(case: Case, value: int, most: int) -> Case:
        options = dict(case.variant.options)
        if case.variant.name == "single_device":
            part = Part("cached", cached.__name__)
            return replace(case, variant=Variant("cached", "contiguous", part, part, tuple(
                sorted({**dict(plugins.default_options(cached)), "chunk": 0, name: value}.items())
            )))  # fmt: skip
        return replace(case, variant=replace(case.variant, options=tuple({**options, name: value}.items())))

    def refused(case: Case) -> str | None:
        if case.variant.name == "single_device" or name in dict(case.variant.options):
            return None
        return f"variant {case.variant.name} has no {name}; use decode, chunked_prefill or single_device"

    return Axis(1, changed, lambda case, own, value, most: own, FORWARD, refused=refused)


AXES = {
    "batchmates": Axis(
        0, lambda case, value, most: _with_problem(case, batch=1 + value),
        lambda case, own, value, most: _batch(case, own, value, 0), ALL,
    ),
    "order": Axis(
        0, lambda case, value, most: _with_problem(case, batch=1 + most),
        lambda case, own, value, most: _batch(case, own, most, value), ALL, batch=lambda value: value,
    ),
    "length": Axis(
        0, lambda case, value, most: _with_problem(case, seqlen=case.problem.seqlen + value), _longer, ROWS,
        refused=_only_plain_causal,
    ),
    "queries": Axis(
        1, lambda case, value, most: _with_problem(
            case, seqlen_q=None if value == case.problem.seqlen else value
        ), lambda case, own, value, most: [
            x[:, -value:].contiguous() if name in ("q", "dout") else x
            for name, x in zip(("q", "k", "v", "dout"), own, strict=True)
        ], ROWS, last=True, refused=_only_plain_causal,
    ),
    "chunk": _option("chunk"),
    "pages": _option("page"),
    "splits": _option("splits"),
}  # fmt: skip
