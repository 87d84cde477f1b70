"""How often does every query count every key? Read off the results row by row, by least squares.

Given the reference's exponentials, exp(lse) and exp(lse) out are linear in the counts of a row: B H (D + 1) equations
for S unknown. So are dq's row in its keys, B H D equations, and dk's and dv's in its queries, B Hk D. Where there are
more equations than unknown the counts are whole numbers only if that is what was computed.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.base import FORWARD, Asked, Hypothesis, tensors_of

WHOLE = 1e-2
MOST_KEYS = 256


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Counts of the forward, then of each gradient."""
    problem = asked.case.problem
    longest, width = max(problem.seqlen, problem.queries), problem.batch * problem.head_dim
    if longest > MOST_KEYS or {"softcap", "dropout"} & set(problem.features):
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
