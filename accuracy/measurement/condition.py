"""How hard is a case for any implementation? Condition numbers of its softmax and of its sums, in float64.

The observer `conditions`. In: inputs and reference. Out: numbers that say how far roundings of relative size u move a
result: error_rel is about u times condition_rounding, and at most u times condition_sum where nothing but the terms of
the sum is rounded.

- condition_softmax: of a row of scores s, 2 (1 - max p) max |s|, as root mean square over rows. It is the condition
  number of the softmax in the maximum norm, |G| |s| / |p| with G = diag(p) - p p^T (Blanchard, Higham and Higham
  2021, IMA Journal of Numerical Analysis 41, section 3): the absolute row sums of G are 2 p (1 - p), the largest of
  which is that of max p.
- condition_sum: || sum |terms| || / || sum terms ||, Frobenius norms (Higham 2002, section 4.2): every rounding error
  on the same side. Terms: out p_j v_j; dq ds_j k_j; dk ds_i q_i; dv p_i dout_i; delta dout_d p_j v_jd; dsink
  p_sink delta; and of lse, which a relative error e of p_j or of s_j moves by e p_j or e p_j s_j: 1 + sum p_j |s_j|.
- condition_rounding: || (sum terms^2 + result^2)^(1/2) || / || result ||: errors of the terms and of the result as
  independent, which add in squares (Higham and Mary 2019, SIAM Journal on Scientific Computing 41). delta has the
  errors of the rounded out that it is made of, and ds has delta's beside its own, one for a whole row.

Everything in blocks of rows, as the reference: memory linear in the sequence length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case, Problem
from accuracy.inputs.drawing import Inputs
from accuracy.kernel.block.calls import part_of
from accuracy.measurement.metrics import Array, appended
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import shards_of_tensor
from accuracy.reference.float64 import BLOCK_ELEMENTS, seen_keys
from accuracy.results.derived import ratio
from accuracy.runtime import given_mask
from accuracy.runtime.sharding import sharding_of, token_map

Named = dict[str, Tensor]
OF_QUERIES = ("out", "lse", "delta", "dq")
TOGETHER = 2**21
"""Scores of several heads at most (16 MiB)."""


@dataclass(frozen=True)
class Magnitudes:
    """In token layout. softmax: of every row, (B, Sq, H); by tensor, of every element, absolute: sum |terms|, squares:
    sum of the squares of independent errors."""

    softmax: Tensor
    absolute: Named
    squares: Named


def runs(case: Case, options: None) -> int:
    """Return how many times the work of a forward and a backward the sums of magnitudes take."""
    return 3


def answer(observation: Observation, options: None) -> Answer:
    """Return each tensor's condition numbers, of every rank and of all together."""
    case, targets = observation.case, observation.targets
    sums = targets.once("magnitudes", lambda: magnitudes(case.problem, targets.inputs, targets.reference))
    found = {name: columns(case, sums, name, targets.target(case, name).values) for name in observation.compared}
    return Answer({name: {column: each.tolist() for column, each in one.items()} for name, one in found.items()})


def columns(case: Case, magnitudes: Magnitudes, tensor: str, reference: Tensor) -> dict[str, Array]:
    """Return the table's columns, each (W + 1,), the last of all ranks. reference: the tensor's shards.

    A rank's condition_softmax is that of its own queries.
    """
    result = _sum_of_squares(reference)
    softmax, absolute, squares = (
        shards_of_tensor(case, name, x)
        for name, x in (
            ("lse", magnitudes.softmax), (tensor, magnitudes.absolute[tensor]), (tensor, magnitudes.squares[tensor]),
        )
    )  # fmt: skip
    found = {
        "condition_softmax": (_sum_of_squares(softmax), _count(case, magnitudes.softmax)),
        "condition_sum": (_sum_of_squares(absolute), result),
        "condition_rounding": (squares.flatten(1).sum(1).cpu().numpy(), result),
    }
    return {name: np.sqrt(ratio(appended(above), appended(below), 1.0)) for name, (above, below) in found.items()}


def _sum_of_squares(shards: Tensor) -> Array:
    return shards.flatten(1).square().sum(1).cpu().numpy()


def _count(case: Case, tensor: Tensor) -> Array:
    elements = tensor.numel() / case.problem.queries
    tokens = token_map(sharding_of(case), case.problem.queries, case.world_size) < case.problem.queries
    return np.maximum(1.0, elements * tokens.sum(1).numpy())


def magnitudes(problem: Problem, inputs: Inputs, reference: Named) -> Magnitudes:
    """Return what each element of each tensor sums: the absolute terms and their squares. reference: its tensors, in
    token layout."""
    seen = seen_keys(problem.queries, problem.seqlen, **problem.seen_by)
    there = seen.to(inputs.q.device)  # once: a GPU is waited for
    mask = given_mask.in_four(problem, inputs.q.dtype, inputs.q.device)
    absolute, squares = ({name: torch.zeros_like(x) for name, x in reference.items()} for _ in range(2))
    found = Magnitudes(torch.zeros_like(reference["lse"]), absolute, squares)
    given = {"q": inputs.q, "dout": inputs.dout, **{name: reference[name] for name in ("out", "lse", "delta")}}
    for item in range(problem.batch):
        for groups, own in _heads_at_once(problem, seen):
            of_queries = {name: _of_heads(problem, x[item], groups, own).double() for name, x in given.items()}
            of_queries |= {name: of_queries[name][..., None] for name in ("lse", "delta")}
            k, v = (x[item, :, groups, None].double().permute(1, 2, 0, 3) for x in (inputs.k, inputs.v))
            beside = None if mask is None else mask[item % mask.shape[0]]
            if beside is not None:
                beside = beside.expand(problem.heads, -1, -1).unflatten(0, (problem.heads_kv, -1))[groups, own]
            _add_heads(found, (item, groups, own), of_queries, (k, v), problem, (seen, there), beside)
    for name in set(reference) - {"delta"}:  # what rounds that is out
        squares[name] += reference[name].square()
    return found


def _heads_at_once(problem: Problem, seen: Tensor) -> Iterator[tuple[slice, slice]]:
    """Key/value heads, and query heads of each, whose scores are no more than a few small blocks: a GPU waits for the
    launches of one head alone."""
    share = problem.heads // problem.heads_kv
    rows, keys = next(_blocks(seen))
    together = max(1, TOGETHER // ((rows.stop - rows.start) * (keys.stop - keys.start)))
    step = max(1, together // share)
    for first in range(0, problem.heads_kv, step):
        for own in range(0, share, together):
            yield slice(first, min(first + step, problem.heads_kv)), slice(own, min(own + together, share))


def _of_heads(problem: Problem, x: Tensor, groups: slice, own: slice) -> Tensor:
    """Return a view of some heads of x (Sq, H, ...): (G, T, Sq, ...), G key/value heads and T query heads of each."""
    return x.unflatten(1, (problem.heads_kv, -1))[:, groups, own].movedim(0, 2)


def _add_heads(
    found: Magnitudes, place: tuple[int, slice, slice], of_queries: Named, of_kv: tuple[Tensor, Tensor],
    problem: Problem, seen: tuple[Tensor, Tensor], beside: Tensor | None,
) -> None:  # fmt: skip
    """Fill in the sums of query heads, add to those of their key/value heads.

    Args:
        found: of all elements.
        place: the item of the batch, G key/value heads and T query heads of each.
        of_queries: q, dout, out (G, T, Sq, D), lse and delta (G, T, Sq, 1) of these heads, float64.
        of_kv: k and v (G, 1, S, D), float64.
        problem: of the case.
        seen: the first key that a query sees, and the one after the last (Sq, 2), on the CPU and on their device.
        beside: what is added to the scores of these heads, or hides them, (G, T, Sq, S).
    """
    item, groups, own = place
    share = problem.heads // problem.heads_kv
    absolute, squares = ({name: _of_heads(problem, x[item], groups, own) for name, x in each.items()
                          if name in OF_QUERIES} for each in (found.absolute, found.squares))  # fmt: skip
    softmax = _of_heads(problem, found.softmax[item], groups, own)
    of_keys = {name: [each[name][item, :, groups].movedim(0, 1) for each in (found.absolute, found.squares)]
               for name in ("dk", "dv")}  # fmt: skip
    scale = problem.softmax_scale
    for rows, keys in _blocks(seen[0]):
        q, dout, out, lse, delta = (of_queries[name][:, :, rows] for name in ("q", "dout", "out", "lse", "delta"))
        k, v = (x[:, :, keys] for x in of_kv)
        scores, slope = _scores(q, k, problem)
        added = 0.0 if beside is None else given_mask.added(beside[:, :, rows, keys], scores.dtype)
        key = torch.arange(keys.start, keys.stop, device=scores.device)
        bounds = seen[1][rows]
        hidden = (key < bounds[:, :1]) | (key >= bounds[:, 1:])
        p = (scores + added - lse).exp_().masked_fill_(hidden, 0.0)
        size = scores.abs_().masked_fill_(hidden, 0.0)
        ds = (dout @ v.mT).sub_(delta).mul_(p)
        if "dbias" in found.absolute:
            for each, terms in ((found.absolute, ds.abs()), (found.squares, ds.square())):
                mine = part_of(each["dbias"].transpose(1, 2), rows, keys)[item % len(each["dbias"])]
                of_heads = len(mine) == problem.heads
                mine = mine.unflatten(0, (-1, share))[groups, own] if of_heads else mine[None]
                mine += terms.sum_to_size(mine.shape)
        ds.mul_(slope)
        if problem.sinks is not None:
            logits = torch.tensor(problem.sink_logits, dtype=lse.dtype, device=lse.device)
            mine = logits.unflatten(0, (-1, share))[groups, own]
            terms = (mine[..., None, None] - lse).exp_() * delta
            for each, values in ((found.absolute, terms.abs()), (found.squares, terms.square())):
                each["dsink"][0, 0].unflatten(0, (-1, share))[groups, own] += values.sum((2, 3))
        p2, ds2 = p.square(), ds.square()

        softmax[:, :, rows] = 2 * (1 - p.amax(3)) * size.amax(3)
        absolute["lse"][:, :, rows] = 1 + (p * size).sum(3)
        squares["lse"][:, :, rows] = (p2 * (1 + size.square())).sum(3)
        absolute["out"][:, :, rows] = spread = p @ v.abs()
        squares["out"][:, :, rows] = terms = p2 @ v.square()
        absolute["delta"][:, :, rows] = (dout.abs() * spread).sum(3)
        of_delta = (dout.square() * (terms + out.square())).sum(3, keepdim=True)
        squares["delta"][:, :, rows] = of_delta.squeeze(3)
        of_keys_here = {"dv": (p.mT @ dout.abs(), p2.mT @ dout.square())}
        pulled = p.mul_(slope)  # how ds moves with delta
        squares["dq"][:, :, rows] = scale**2 * (ds2 @ k.square() + of_delta * (pulled @ k).square())
        of_dk = scale**2 * (ds2.mT @ q.square() + pulled.square().mT @ (of_delta * q.square()))
        ds.abs_()
        absolute["dq"][:, :, rows] = scale * (ds @ k.abs())
        of_keys_here["dk"] = scale * (ds.mT @ q.abs()), of_dk
        for name, both in of_keys_here.items():
            for sums, terms in zip(of_keys[name], both, strict=True):
                sums[:, keys] += terms.sum(1)


def _scores(q: Tensor, k: Tensor, problem: Problem) -> tuple[Tensor, Tensor | float]:
    """Scores, and by what a cap multiplies their gradient."""
    scores = (q @ k.mT).mul_(problem.softmax_scale)
    if problem.softcap is None:
        return scores, 1.0
    ratio_to_cap = scores.div_(problem.softcap).tanh_()
    return ratio_to_cap * problem.softcap, 1 - ratio_to_cap.square()


def _blocks(seen: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows, and the keys from the first that one of them sees to the last."""
    length, most = len(seen), int((seen[:, 1] - seen[:, 0]).max())
    rows = max(1, min(1024, BLOCK_ELEMENTS // most))
    for first in range(0, length, rows):
        block = seen[first : first + rows]
        yield slice(first, min(first + rows, length)), slice(int(block[:, 0].min()), int(block[:, 1].max()))
