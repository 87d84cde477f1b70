"""Another mask than the problem's, of the keys that a query sees.

Masks are tried one by one; and how often every query counts every key is read off the results row by row, by least
squares. Given the reference's exponentials, exp(lse) and exp(lse) out are linear in the counts of a row: B H (D + 1)
equations for S unknown. So are dq's row in its keys, B H D equations, and dk's and dv's in its queries, B Hk D. Where
there are more equations than unknown the counts are whole numbers only if that is what was computed.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.base import FORWARD, Asked, Hypothesis, altered, tensors_of
from accuracy.reference.float64 import seen_keys

WHOLE = 1e-2
MOST_KEYS = 256
SWAPPED = "a query sees no key but its own, as in a function of (B, H, S, D) that is measured without layout=bhsd"
TILES = (2, 4, 8, 16, 32, 64)
"""Queries that one instruction, or one tile, has together."""


def masks(asked: Asked) -> Iterator[Hypothesis]:
    """Each mask that shows other pairs than the right one."""
    seen: list[Tensor] = [asked.reference.counts]
    for word, counts in _others(asked):
        if any(torch.equal(counts, each) for each in seen) or counts.shape != seen[0].shape:
            continue
        seen.append(counts)
        yield from altered(asked, f"mask: {word}", word, {"counts": counts})


def _others(asked: Asked) -> Iterator[tuple[str, Tensor]]:
    problem, right = asked.case.problem, asked.reference.counts
    offset = torch.arange(problem.seqlen)[None] - torch.arange(problem.queries)[:, None] - problem.query_offset
    queries, keys = asked.owners
    same = queries[:, None] == keys[None]
    yield from _other_problems(problem)
    if problem.causal:
        yield "a query does not see its own position", right * (offset != 0)
        yield "a query sees one key too far ahead", right.maximum((offset == 1).double())
        yield "rows see the block of their own rank in full, not causally", right.maximum(same.double())
        alone = "rows see no key of their own rank behind the diagonal" if asked.size > 1 else SWAPPED
        yield alone, right * (~same | (offset == 0))
        yield "the mask is anticausal", (offset >= 0).double()
        local = _local(asked.tokens)[:, None]
        causal = _local(asked.keys)[None] <= local
        yield "every block is causal by local positions", right * (same | causal)
        yield "every block is causal by local positions, later ranks' too", causal.double()
        up_to = torch.arange(problem.seqlen)[None] <= local
        yield "a query sees all keys up to its local position", up_to.double()
        yield "the causal mask goes by ranks", (keys[None] <= queries[:, None]).double()
        row = torch.arange(problem.queries)
        for size in TILES:
            last = (row // size * size + size - 1).clamp(max=problem.queries - 1)
            yield f"each query sees the keys of the last of its {size} queries", right[last]
    if asked.size > 1:
        yield from _unmasked(asked)
    local_key = _local(asked.keys)
    for word, index in (("first", 0), ("last", problem.seqlen // asked.size - 1)):
        hidden = (local_key == index)[None]
        yield f"the {word} key of every rank is never seen", right * ~hidden
        yield f"the {word} key of every other rank is never seen", right * ~(hidden & ~same)
        for rank in range(asked.size):
            of_rank = hidden & (keys == rank)[None]
            yield f"the {word} key of rank {rank} is never seen", right * ~of_rank
            yield f"the {word} key of rank {rank} is never seen by other ranks", right * ~(of_rank & ~same)


def _other_problems(problem: Problem) -> Iterator[tuple[str, Tensor]]:
    window, documents = problem.window, problem.documents
    others = {"the mask is causal": replace(problem, mask="causal")}
    if problem.causal:
        top_left = problem.mask == "causal_top_left"
        side, mask = ("bottom right", "causal") if top_left else ("top left", "causal_top_left")
        others = {
            "there is no causal mask": replace(problem, mask="full"),
            f"the causal mask is aligned at the {side}": replace(problem, mask=mask),
        }
    if window is not None:
        others["the window is ignored"] = replace(problem, window=None)
        for other in (window - 1, window + 1):
            if other >= 0:
                others[f"the window is {other} keys, not {window}"] = replace(problem, window=other)
    if documents:
        others["the borders of documents are ignored"] = replace(problem, documents=())
    for word, step in (("late", 1), ("early", -1)) if len(documents) > 1 else ():
        moved = documents[0] + step, documents[1] - step, *documents[2:]
        others[f"the first border of documents is one token {word}"] = replace(problem, documents=moved)
    key = torch.arange(problem.seqlen)
    for word, other_problem in others.items():
        try:
            seen = seen_keys(other_problem.queries, other_problem.seqlen, **other_problem.seen_by)
        except ValueError:  # some query sees no key
            continue
        begin, end = seen.T[..., None]
        yield word, ((key >= begin) & (key < end)).double()
    if window is not None and not problem.causal:
        query = torch.arange(problem.queries)[:, None] + problem.query_offset
        yield "the window has no right side", ((key >= query - window) & (key <= query)).double()


def _unmasked(asked: Asked) -> Iterator[tuple[str, Tensor]]:
    """Whole blocks of other ranks, of those that a rank sees anything of."""
    right, size = asked.reference.counts, asked.size
    queries, keys = asked.owners
    if right.bool().any(-1).all():
        blocks, (rows, columns) = torch.zeros(size, size, dtype=torch.float64), right.nonzero().T
        blocks[queries[rows], keys[columns]] = 1.0
        other = queries[:, None] != keys[None]
        yield "blocks of other ranks have no mask", torch.where(other, blocks[queries][:, keys], right)


def _local(tokens: Tensor) -> Tensor:
    """The position of every token in its shard."""
    return tokens.flatten().argsort() % tokens.shape[1]


def pairs(asked: Asked) -> Iterator[Hypothesis]:
    """Counts of the forward, then of each gradient."""
    problem = asked.case.problem
    longest, width = max(problem.seqlen, problem.queries), problem.batch * problem.head_dim
    if longest > MOST_KEYS or problem.softcap is not None:
        return
    if set(asked.wrong) & set(FORWARD) and width * problem.heads > problem.seqlen:
        counts = _whole(_forward(asked))
        if counts is not None and (words := describe(asked, counts)):
            changed = asked.reference.but(counts=counts)
            if changed.finite:
                yield Hypothesis("pairs", f"the softmax {words[0]}", tensors_of(changed), *words[1:])
    for name, base, attention in asked.gradients():
        heads = problem.heads if name == "dq" else problem.heads_kv
        if width * heads > longest:
            counts = _whole(_backward(asked, name, attention))
            if counts is not None and (words := describe(asked, counts)):
                predicts = {name: attention.but(counts=counts).tensor(name)}
                yield Hypothesis("pairs (backward)", f"{name} {words[0]}{base}", predicts, *words[1:])


def _forward(asked: Asked) -> Tensor:
    """(Sq, S)."""
    reference = asked.reference
    every = torch.exp(reference.scores - reference.lse[..., None])  # (B, H, Sq, S)
    values = reference.v[:, reference.heads]
    out = asked.returned["out"].transpose(1, 2) if "out" in asked.returned else reference.out
    if "lse" not in asked.returned:
        return _up_to_a_factor(torch.einsum("bhqk,bhqkd->qbhdk", every, values[:, :, None] - out[..., None, :]))
    ratio = torch.exp(asked.returned["lse"].transpose(1, 2) - reference.lse)
    tops = torch.einsum("bhqk,bhkd->qbhdk", every, values).flatten(1, 3)
    design = torch.cat([tops, every.permute(2, 0, 1, 3).flatten(1, 2)], 1)
    goal = torch.cat([(out * ratio[..., None]).permute(2, 0, 1, 3).flatten(1), ratio.permute(2, 0, 1).flatten(1)], 1)
    return _solve(design, goal)


def _up_to_a_factor(design: Tensor) -> Tensor:
    """(Sq, S): of rows without lse, counts c with sum_k c_k p_k (v_k - out) = 0, the least of them 1. design: (Sq, ...,
    S). NaN where the equations leave more than one."""
    scaled = design.flatten(1, 3)
    size = scaled.norm(dim=1, keepdim=True).clamp_min(1e-300)
    _, values, vectors = torch.linalg.svd(scaled / size, full_matrices=False)
    counts = vectors[:, -1] / size.squeeze(1)
    counts = counts / counts.gather(1, counts.abs().argmax(1, keepdim=True))
    least = torch.where(counts.abs() > WHOLE, counts.abs(), torch.inf).amin(1, keepdim=True)
    known = (values[:, -2] > WHOLE * values[:, 0]) & (values[:, -1] < WHOLE**2 * values[:, 0])
    return torch.where(known[:, None], counts / least, torch.nan)


def _backward(asked: Asked, name: str, attention: Attention) -> Tensor:
    """(Sq, S)."""
    shown = attention.but(counts=torch.ones_like(attention.counts))
    x = asked.returned[name]
    if name == "dq":
        keys = attention.k[:, attention.heads]
        design = torch.einsum("bhqk,bhkd->qbhdk", shown.ds * attention.scale, keys).flatten(1, 3)
        return _solve(design, x.transpose(0, 1).flatten(1))
    by, rows = (shown.backward_weights, attention.dout) if name == "dv" else (shown.ds * attention.scale, attention.q)
    each = torch.einsum("bhqk,bhqd->khbdq", by, rows)
    design = attention.over_group("", each).transpose(1, 2).flatten(1, 3)
    return _solve(design, x.transpose(0, 1).flatten(1)).T


def _solve(design: Tensor, goal: Tensor) -> Tensor:
    """Of each row's equations (rows, n, unknown), the unknown, columns scaled to one size."""
    size = design.norm(dim=1, keepdim=True).clamp_min(1e-300)
    scaled = design / size
    gram = scaled.transpose(1, 2) @ scaled
    right = scaled.transpose(1, 2) @ goal[..., None]
    solved, _ = torch.linalg.solve_ex(gram, right)
    return solved.squeeze(-1) / size.squeeze(1)


def _whole(counts: Tensor) -> Tensor | None:
    """Whole numbers, if all are."""
    rounded = counts.round()
    if not counts.isfinite().all() or bool(((counts - rounded).abs() > WHOLE).any()):
        return None
    return rounded


def describe(asked: Asked, counts: Tensor) -> tuple[str, str, int] | None:
    """(in words, parameter, numbers fitted) of what differs from the mask; None where nothing does."""
    right = asked.reference.counts
    off = (counts != right).nonzero()
    if not len(off):
        return None
    queries, keys = off.T
    values = counts[queries, keys]
    kinds = {
        "leaves out": (values == 0), "shows": (values > 0) & (right[queries, keys] == 0),
        "counts more than once": (values > 0) & (right[queries, keys] > 0),
    }  # fmt: skip
    said = [f"{verb} {_where(queries[chosen], keys[chosen])}" for verb, chosen in kinds.items() if chosen.any()]
    return ", ".join(said), f"{len(off)} pairs", len(off)


def _where(queries: Tensor, keys: Tensor) -> str:
    pairs, offsets = f"{len(keys)} pair{'s' if len(keys) > 1 else ''}", (keys - queries).unique()
    of_queries, of_keys = (f"{int(x.min())} to {int(x.max())}" for x in (queries, keys))
    if len(keys.unique()) == 1:
        return f"key {int(keys[0])} for {len(queries)} queries from {of_queries}"
    if len(queries.unique()) == 1:
        return f"{len(keys)} keys from {of_keys} for query {int(queries[0])}"
    if len(offsets) == 1:
        return f"{pairs} of a query at p and the key at p {int(offsets[0]):+d}"
    return f"{pairs} of queries {of_queries} and keys {of_keys}"
