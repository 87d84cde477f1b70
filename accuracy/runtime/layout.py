"""How a callable takes q, k, v and gives back out and lse, and how that becomes ours: (B, S, H, D) and (B, H, S).

Autograd follows every view and copy, so gradients arrive in our layout too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """arguments: what the callable gets for q (B, S, H, D), k, v (B, S, Hk, D), and the borders of documents, of which
    packed sequences alone tell; out, lse: its results made ours, with the batch size."""

    arguments: Callable[[Tensor, Tensor, Tensor, Sequence[int]], tuple[tuple[Tensor, ...], dict[str, Any]]]
    out: Callable[[Tensor, int], Tensor]
    lse: Callable[[Tensor, int], Tensor]


def _same(x: Tensor, batch: int) -> Tensor:
    return x


def _packed_sequences(
    q: Tensor, k: Tensor, v: Tensor, documents: Sequence[int]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The batch's sequences, or its documents, one behind the other: (T, heads, D) and where each begins."""
    batch, length = q.shape[:2]
    inner = torch.tensor(documents or (0, length), dtype=torch.int32)
    borders = torch.cat([inner[:1], *(inner[1:] + item * length for item in range(batch))]).to(q.device)
    return tuple(x.flatten(0, 1) for x in (q, k, v)), {"cu_seqlens": borders, "max_seqlen": int(inner.diff().max())}


LAYOUTS = {
    "bshd": Layout(lambda q, k, v, _: ((q, k, v), {}), _same, _same),
    "bhsd": Layout(
        lambda *given: (tuple(x.transpose(1, 2).contiguous() for x in given[:3]), {}),
        lambda out, batch: out.transpose(1, 2),
        _same,
    ),
    "kvpacked": Layout(lambda q, k, v, _: ((q, torch.stack((k, v), dim=2)), {}), _same, _same),
    "qkvpacked": Layout(lambda q, k, v, _: ((torch.stack((q, k, v), dim=2),), {}), _same, _same),
    "varlen": Layout(  # out (T, H, D), lse (H, T)
        _packed_sequences,
        lambda out, batch: out.unflatten(0, (batch, -1)),
        lambda lse, batch: lse.unflatten(1, (batch, -1)).transpose(0, 1),
    ),
}
