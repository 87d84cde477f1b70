"""ring-flash-attention 0.1.8 on packed documents: `ring_flash_attn_varlen_func` and its zigzag.

Every rank has a part of every document: part r of W, in zigzag chunks r and 2W - 1 - r of 2W. Shards are contiguous:
tokens are exchanged for the package's, and results for ours. A batch is one call a sequence.
"""

import importlib
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import installed, substitutes
from accuracy.package.ring_flash_attn import DISTRIBUTION, PACKAGE, Result, stacked, surroundings
from accuracy.world.documents import Exchange, by_document, exchanged, uncut

__all__ = ["DISTRIBUTION", "FEATURES", "ring", "surroundings", "unsupported", "zigzag"]

FEATURES = {"ring": ("documents",), "zigzag": ("documents",)}
SHARDINGS = {"ring": "contiguous", "zigzag": "zigzag"}  # of each document


def unsupported(case: Case) -> str | None:
    """As the package's other rings; a document that the ranks cannot share."""
    if reason := installed.unsupported_case(
        DISTRIBUTION, case, float64=False, causal_only=("zigzag",), to_itself=tuple(SHARDINGS)
    ):
        return reason
    name = installed.called(case)
    problem = case.problem.padded(case.variant.sharding, case.world_size)
    reason = uncut(problem.documents or (problem.seqlen,), SHARDINGS[name], case.world_size)
    return reason and f"{DISTRIBUTION}'s varlen {name} {reason}"


def _attend(
    name: str, function: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float,
    group: dist.ProcessGroup,
) -> Result:  # fmt: skip
    size, length = dist.get_world_size(group), q.shape[1]
    borders = substitutes.documents() or (0, length * size)
    ours = by_document([length * size], "contiguous", size)
    theirs = by_document([end - begin for begin, end in pairwise(borders)], SHARDINGS[name], size)
    local = torch.tensor([border // size for border in borders], dtype=torch.int32, device=q.device)
    how = {
        "cu_seqlens": local, "max_seqlen": max(b - a for a, b in pairwise(local.tolist())), "causal": causal,
        "softmax_scale": softmax_scale, "group": group, "return_attn_probs": True,
        "deterministic": substitutes.deterministic(),
    }  # fmt: skip
    given = [Exchange.apply(x, ours, theirs, group) for x in (q, k, v)]
    call = getattr(importlib.import_module(PACKAGE), function)
    found = [call(*sequence, **how)[:2] for sequence in zip(*given, strict=True)]
    out, lse = stacked(found)
    back: Tensor = Exchange.apply(out, theirs, ours, group)
    return back, exchanged(lse.detach().transpose(1, 2), theirs, ours, group).transpose(1, 2)


ring = partial(_attend, "ring", "ring_flash_attn_varlen_func")
zigzag = partial(_attend, "zigzag", "zigzag_ring_flash_attn_varlen_func")
