"""Which pairs of a query and a key does a returned tensor hold, and how often? Read off it, whoever computed it.

With inputs `one_hot` a row of out times a row of v is one weight of the softmax, and the gradients times rows of k, q
and dout are one pair's part of them. Each is divided by the reference's: a count, if all of a tensor's are whole
numbers in units of the smallest, of out's in each row, as a softmax that lacks a key weighs the others more. A constant
factor is no finding, and values that are no counts are not taken for such; nor are those of a gradient in which no pair
counts once.

In: a case and what its ranks returned. Out: rows of `steps/`; none with other inputs, or with more tokens than a row
can tell apart.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.measurement.compare import is_padded, joined
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import Row
from accuracy.runtime.sharding import sharding_of, token_map
from accuracy.world.base import Results

WHOLE = 2.0**-5  # from a whole number: eight unit roundoffs of bfloat16, as `rounding_band` derives
KNOWN = 1e-3  # of the largest part: what is smaller in the reference, as where a gradient cancels, tells nothing


def answer(observation: Observation, options: None) -> Answer:
    """Rows of `steps/`."""
    return Answer(tables={"steps": rows(observation.case, observation.targets, observation.ran.results)})


def rows(case: Case, targets: Targets, results: Sequence[Results]) -> list[Row]:
    """A row for each rank, tensor and kind of finding; of gradients only where out and lse are right: theirs follow."""
    problem = case.problem
    group = problem.heads // problem.heads_kv
    if (
        case.inputs.name != "one_hot"
        or problem.sinks is not None
        or problem.attn_mask is not None
        or is_padded(case)
        or max(group * problem.queries, problem.seqlen) > min(problem.head_dim, problem.value_dim)
    ):
        return []
    returned = {name: x.double() for name, x in joined(case, results).items()}
    lse, right_lse = returned.pop("lse", None), targets.reference["lse"]
    parts = _parts(targets, returned)
    held, right = parts["out"]
    found = [*_findings(case, "out", held, right)]
    out_is_right = bool(((held - right).abs() <= WHOLE * right.abs().max()).all())
    lse_is_right = lse is None or bool(((lse - right_lse).abs() <= WHOLE * (1 + right_lse.abs())).all())
    if found or not out_is_right or not lse_is_right:
        return found
    return [row for name, each in parts.items() if name != "out" for row in _findings(case, name, *each)]


def _parts(targets: Targets, returned: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """By tensor, the parts (B, H, Sq, S) that it holds, and those that it should."""
    q, k, v, dout = (x.double() for x in targets.inputs.tensors)
    heads = torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])

    def of(name: str, x: Tensor) -> Tensor:
        if name in ("dk", "dv"):
            return torch.einsum("bkhd,bqhd->bhqk", x[:, :, heads], q if name == "dk" else dout)
        return torch.einsum("bqhd,bkhd->bhqk", x, (v if name == "out" else k)[:, :, heads])

    return {name: (of(name, x), of(name, targets.reference[name])) for name, x in returned.items()}


def _findings(case: Case, name: str, held: Tensor, right: Tensor) -> Iterator[Row]:
    problem = case.problem
    begin, end = seen_keys(problem.queries, problem.seqlen, **problem.seen_by).T[..., None].to(held.device)
    keys = torch.arange(problem.seqlen, device=held.device)
    visible = (keys >= begin) & (keys < end)
    known = visible & (right.abs() > KNOWN * right.abs().max())
    ratio = torch.where(known, held / right, 0.0)
    sides = (3,) if name == "out" else (0, 1, 2, 3)
    present = ratio.abs() > WHOLE * ratio.abs().amax(sides, keepdim=True)
    unit = torch.where(present, ratio.abs(), torch.inf).amin(sides, keepdim=True).nan_to_num(posinf=1.0)
    counts = ratio / unit * torch.where(present, ratio, 0.0).sum().sign()
    whole = counts.round()
    if name != "out" and bool(((unit - 1).abs() > WHOLE).any()) and bool((whole != 1)[known].any()):
        return  # a wrong delta makes some parts zero and all others larger
    if not bool(((counts - whole).abs() <= WHOLE * whole.clamp_min(1)).all()) or bool((whole < 0).any()):
        return
    smallest = torch.where(known, right.abs(), torch.inf).amin()
    kinds = {
        "left out": known & (whole == 0), "counted again": whole > 1,
        "shown": ~visible & (held.abs() > smallest * unit / 2),
    }  # fmt: skip
    of_keys = name in ("dk", "dv")
    for rank, tokens in enumerate(token_map(sharding_of(case), problem.length(name), case.world_size)):
        for finding, chosen in kinds.items():
            pairs = chosen.any(1).any(0).cpu()
            of_rank = torch.zeros_like(pairs)
            of_rank[(slice(None), tokens) if of_keys else tokens] = True
            if (pairs := pairs & of_rank).any():
                queries, keys = (pairs.any(side).nonzero().flatten().tolist() for side in (1, 0))
                yield {
                    "case_id": case.id, "way": "forward" if name == "out" else "backward", "rank": rank, "step": -1,
                    "source": -1, "tensor": name, "finding": finding, "count": int(pairs.sum()),
                    "query_begin": queries[0], "query_last": queries[-1], "key_begin": keys[0], "key_last": keys[-1],
                }  # fmt: skip
