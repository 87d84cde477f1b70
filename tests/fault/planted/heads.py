"""Query heads read another key/value head than h // (H / Hk); gradients of a group's heads are not all summed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, Schedule, on_kernel

Mapping = Callable[[Tensor, int, int], Tensor]
"""(query heads, H, Hk) -> the key/value heads that they read."""


def modulo(head: Tensor, heads: int, heads_kv: int) -> Tensor:
    """Interleaved groups."""
    return head % heads_kv


def next_one(head: Tensor, heads: int, heads_kv: int) -> Tensor:
    """Off by one."""
    return (head // (heads // heads_kv) + 1) % heads_kv


def first(head: Tensor, heads: int, heads_kv: int) -> Tensor:
    """As if there were one."""
    return head * 0


def mapped(mapping: Mapping, *ways: str) -> Schedule:
    """The ring on a kernel that maps heads so."""

    def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
        place = mapping(torch.arange(q.shape[2]), q.shape[2], k.shape[2])
        return kernel.forward(q, k[:, :, place], v[:, :, place], **how)

    def backward(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
        place = mapping(torch.arange(q.shape[2]), q.shape[2], k.shape[2])
        dq, *pair = kernel.backward(dout, q, k[:, :, place], v[:, :, place], *outs, **how)
        return dq, *(torch.zeros_like(k, dtype=x.dtype).index_add_(2, place, x) for x in pair)

    calls: dict[str, Any] = {"forward": forward, "backward": backward}
    return on_kernel(**{way: calls[way] for way in ways})


def first_of_group(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dk and dv of the first query head only, where one key/value head serves all."""
    dq, dk, dv = kernel.backward(dout, q, k, v, *outs, **how)
    if k.shape[2] > 1:
        return dq, dk, dv
    out, lse = outs
    alone = kernel.backward(dout[:, :, :1], q[:, :, :1], k, v, out[:, :, :1], lse[:, :1], **how)
    return dq, *alone[1:]


HEADS = ("heads",)
PARTS = {
    "heads_modulo": Fault(mapped(modulo, "forward", "backward"), EVERYTHING, causes=HEADS),
    "heads_modulo_forward": Fault(mapped(modulo, "forward"), EVERYTHING, causes=HEADS),
    "heads_off_by_one": Fault(mapped(next_one, "forward", "backward"), EVERYTHING, causes=HEADS),
    "heads_first_only": Fault(mapped(first, "forward", "backward"), EVERYTHING, causes=HEADS),
    "heads_modulo_backward": Fault(mapped(modulo, "backward"), GRADIENTS, causes=HEADS),
    "heads_mqa_sum": Fault(on_kernel(backward=first_of_group), "dk dv", where=("problem.heads_kv=1",)),
}
