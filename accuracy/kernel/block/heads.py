"""Query heads h and the key/value heads h // (H / Hk) that they share (GQA), as views and as copies."""

import torch
from torch import Tensor


def by_kv_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values (B, S, Hk, D) -> (B, Hk, 1, S, D): broadcasts over the query heads of a group."""
    return x.to(dtype).transpose(1, 2).unsqueeze(2)


def by_group(x: Tensor, heads_kv: int, dtype: torch.dtype) -> Tensor:
    """Queries, or a tensor of theirs, (B, S, H, D) -> (B, Hk, G, S, D)."""
    return x.to(dtype).transpose(1, 2).unflatten(1, (heads_kv, -1))


def by_token(x: Tensor) -> Tensor:
    """(B, Hk, G, S, D) -> (B, S, Hk G, D)."""
    return x.flatten(1, 2).transpose(1, 2)


def repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, S, Hk, D) copied for every query head: (B, S, H, D); itself where Hk = H."""
    heads_kv = x.shape[2]
    return x if heads_kv == heads else x.repeat_interleave(heads // heads_kv, dim=2)


def summed(x: Tensor, heads_kv: int, dtype: torch.dtype) -> Tensor:
    """Gradients of `repeated` keys or values, (B, S, H, D), summed over each group in `dtype`: (B, S, Hk, D)."""
    return x.to(dtype) if x.shape[2] == heads_kv else x.unflatten(2, (heads_kv, -1)).sum(3, dtype=dtype)


def first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Token layout <-> head layout, as views."""
    return tuple(tensor.transpose(1, 2) for tensor in tensors)
