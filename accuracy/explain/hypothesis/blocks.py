"""How often does each (query rank, key rank) block enter each rank's result? Read by least squares.

A gradient is a sum over blocks, each known from the reference; a result that holds some of them not at all, or twice,
is a sum with other coefficients. As many are fitted as a rank has blocks, to thousands of values. In the forward
exp(lse) and the numerators of out are such sums.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.core.number import count
from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.base import FORWARD, Asked, Hypothesis, tensors_of

WHOLE = 1e-3  # a coefficient as near as this to a whole number is one
MOST_NAMED = 2


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Other counts of a rank's own blocks, then blocks that a buffer holds too long."""
    if asked.size < 2 or asked.case.problem.queries != asked.case.problem.seqlen:
        return
    for name, base, attention in asked.gradients():
        sums = contributions(asked, name, attention)
        yield from _stale(asked, name, sums, base)
        yield from _of_gradient(asked, name, sums, base)
    if set(asked.wrong) & set(FORWARD):
        yield from _of_forward(asked)


def _of_gradient(asked: Asked, name: str, sums: Tensor, base: str) -> Iterator[Hypothesis]:
    """Coefficients of each rank's own blocks: those of its queries in dq, of its keys in dk and dv."""
    by_rank = sums if name == "dq" else sums.transpose(0, 1)  # [of rank, of the other's tokens]
    shards = asked.shards(asked.returned[name]).flatten(1)
    fitted = torch.stack([_fit(blocks, x) for blocks, x in zip(by_rank, shards, strict=True)])
    counts, expected = _whole(fitted), by_rank.any(-1).double()
    made = torch.einsum("ri,rin->rn", counts, by_rank)
    if name != "dq":
        counts, expected = counts.T, expected.T
    if off := (counts != expected).nonzero().tolist():
        cause = f"{name} {_in_words(counts, off)}{base}"
        predicts = asked.on_ranks(name, made)
        yield Hypothesis("blocks (own)", cause, predicts, _listed(counts, off), len(off))


def _stale(asked: Asked, name: str, sums: Tensor, base: str) -> Iterator[Hypothesis]:
    """The buffer of a hop's block still holds those of the hops before it; or the hops before it are lost."""
    size = asked.size
    for ahead, direction in ((-1, "r - 1"), (1, "r + 1")):
        for word, lasts in {
            "a buffer that is not cleared between hops: each hop adds the blocks of all hops before it too": "all",
            "a sum that the next hop's block overwrites and is then added to: the last block counts twice": "last",
        }.items():
            made = torch.zeros(size, sums.shape[-1], dtype=torch.float64)
            for rank in range(size):
                sources = [(rank + ahead * hop) % size for hop in range(size)]
                visited = [source for source in sources if sums[rank, source].any()]
                for hop, source in enumerate(visited):
                    before, block = sums[rank, visited[: hop + 1]].sum(0), sums[rank, source]
                    if name == "dq" and lasts == "last":
                        made[rank] = block * (2 if len(visited) > 1 else 1)
                    else:
                        made[rank if name == "dq" else source] += before if lasts == "all" else block
            cause, parameter = f"{name} is made in {word}{base}", f"keys of rank {direction} next"
            yield Hypothesis(f"stale: {lasts}", cause, asked.on_ranks(name, made), parameter)


def contributions(asked: Asked, name: str, attention: Attention) -> Tensor:
    """(W, W, n), by query rank and key rank: what a block adds to dq of the one, or to dk or dv of the other."""
    found = []
    weights = attention.backward_weights if name == "dv" else attention.ds
    other, scale = (attention.dout, 1.0) if name == "dv" else (attention.q, attention.scale)
    for rows in asked.tokens:
        for keys in asked.keys:
            here = weights[:, :, rows][..., keys]
            if name == "dq":
                block = here @ attention.k[:, attention.heads][:, :, keys] * scale
            else:
                block = attention.over_group("", here.transpose(-1, -2) @ other[:, :, rows] * scale)
            found.append(block.transpose(1, 2).flatten())
    return torch.stack(found).unflatten(0, (asked.size, asked.size))


def _fit(columns: Tensor, x: Tensor) -> Tensor:
    """Coefficients of least squares of columns (k, n); 0 of columns that are zero."""
    solved: Tensor = torch.linalg.lstsq(columns.T, x[:, None], driver="gelsd").solution[:, 0]
    return torch.where(columns.any(1), solved, torch.zeros_like(solved)).nan_to_num(nan=0.0)


def _whole(fitted: Tensor) -> Tensor:
    """Whole numbers where coefficients are near them."""
    return torch.where((fitted - fitted.round()).abs() < WHOLE, fitted.round(), fitted)


def _listed(counts: Tensor, off: list[list[int]]) -> str:
    """`0:1=0 2:1=2`: by the ranks of its queries and of its keys, how often a block is counted."""
    return " ".join(f"{i}:{j}={float(counts[i, j]):.4g}" for i, j in off)


def _in_words(counts: Tensor, off: list[list[int]]) -> str:
    """The first few blocks that are counted otherwise than expected."""
    named = []
    for i, j in off[:MOST_NAMED]:
        value = float(counts[i, j])
        times = "" if value == 0 else " twice" if value == 2 else f" {value:.4g} times"
        verb = "misses" if value == 0 else "counts"
        named.append(f"{verb} the block of queries of rank {i} and keys of rank {j}{times}")
    more = len(off) - len(named)
    how = "missed too" if all(counts[i, j] == 0 for i, j in off) else "counted wrongly"
    rest = f"; {count(more, 'more block is', 'more blocks are')} {how}" if more else ""
    return ", ".join(named) + rest


def _of_forward(asked: Asked) -> Iterator[Hypothesis]:
    """Coefficients of each rank's keys in exp(lse) and in out's numerator, for each query rank."""
    reference, size, keys = asked.reference, asked.size, asked.owners[1]
    weights = [reference.weights * (keys == rank) for rank in range(size)]
    sums = torch.stack([each.sum(-1, keepdim=True) for each in weights])  # (W, B, H, Sq, 1), of exp(lse_ref)
    tops = torch.stack([each @ reference.v[:, reference.heads] for each in weights])
    returned = {name: x.transpose(1, 2) for name, x in asked.returned.items() if name in FORWARD}
    fitted = torch.zeros(size, size, dtype=torch.float64)
    for rank, rows in enumerate(asked.tokens):
        bottom, top = sums[:, :, :, rows], tops[:, :, :, rows]
        if "lse" in returned:
            ratio = torch.exp(returned["lse"] - reference.lse)[:, :, rows, None]
            equations = [(bottom, ratio)]
            if "out" in asked.wrong:
                equations.append((top, returned["out"][:, :, rows] * ratio))
            columns, goals = zip(*((left.flatten(1), right.flatten()) for left, right in equations), strict=True)
            fitted[rank] = _fit(torch.cat(columns, 1), torch.cat(goals))
        else:
            rest = top - returned["out"][:, :, rows] * bottom
            fitted[rank] = _null(rest.flatten(1), bottom.flatten(1).any(1))
    visible = torch.stack([(sums[:, :, :, rows].flatten(1) > 0).any(1) for rows in asked.tokens]).double()
    whole = _whole(fitted)
    off = ((whole != visible) & (visible > 0)).nonzero().tolist()
    queries, owners = asked.owners
    changed = reference.but(counts=reference.counts * whole[queries][:, owners])
    if fitted.isfinite().all() and off and changed.finite:
        cause = f"the softmax {_in_words(whole, off)}"
        yield Hypothesis("blocks (own)", cause, tensors_of(changed), _listed(whole, off), len(off))


def _null(rest: Tensor, present: Tensor) -> Tensor:
    """Coefficients, up to a common factor, whose sum of `rest` (W, n) is nearest zero: most of them are 1."""
    solved = torch.zeros(len(rest), dtype=torch.float64)
    if present.any():
        _, _, right = torch.linalg.svd(rest[present].T, full_matrices=False)
        least = right[-1]
        solved[present] = least / least[least.abs() > 1e-3 * least.abs().max()].median()
    return solved
