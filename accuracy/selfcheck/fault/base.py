"""What faults are made with: a healthy rank with one method, its kernel or its merge exchanged for a broken one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.kernel.base import Kernel
from accuracy.kernel.block.running_state import Carried
from accuracy.variant.base import Rank
from accuracy.variant.join.merge import Running
from accuracy.variant.ring import blocks, ring_forward
from accuracy.world.base import Tensors

Formula = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class BrokenKernel:
    """Passes everything on to a healthy kernel, but for what a fault overrides."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        return self.kernel.forward(q, k, v, **how)

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""
        return self.kernel.backward(*tensors, **how)


def with_kernel(rank: Rank, broken: Callable[[Kernel], BrokenKernel]) -> Rank:
    """The rank on a broken kernel around its own."""
    kernel: Any = broken(rank.kernel)  # its signatures pass on what they need not know
    return replace(rank, kernel=kernel)


def unwritten(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory that nobody wrote for this use. What an earlier tensor left in it is finite, whatever ran before: the
    allocator hands out what was freed last, or fresh pages of zeros. NaN where unwritten memory is poisoned."""
    torch.ones(*shape, dtype=like.dtype, device=like.device)
    return torch.empty(*shape, dtype=like.dtype, device=like.device)


def changed(rank: Rank, **methods: Callable[..., Any]) -> Rank:
    """The rank with some of its methods replaced."""
    kind = type("Changed", (type(rank),), methods)
    return kind(**{field.name: getattr(rank, field.name) for field in fields(rank)})


def joined_by(rank: Rank, formula: Formula) -> Rank:
    """The rank with another formula that joins two partials. A case on a kernel that merges nothing fails."""

    def running(self: Rank, q: Tensor) -> Running:
        partial = type(rank).running(self, q)
        if isinstance(partial, Carried):
            raise RuntimeError("the fault is in the merge, and this kernel carries its state unmerged: use another")

        def join(out: Tensor, before: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
            new_out, new_lse = formula(before.to(out.dtype), lse, block_out, block_lse)
            out.copy_(new_out)
            lse.copy_(new_lse)

        partial._join = join  # type: ignore[method-assign]
        return partial

    return changed(rank, running=running)


@dataclass(frozen=True)
class Hidden(Block):
    """A block that no query sees."""


async def computing_hidden_blocks(rank: Rank, empty_lse: float, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's forward without its shortcut: hidden blocks are merged too, with out = 0 and lse = `empty_lse`."""

    def every_block(rank: Rank, source: int, length: int) -> list[Block]:
        whole = slice(0, length)
        return blocks(rank, source, length) or [Hidden(whole, whole, causal=True)]

    def attend(self: Rank, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(block, Hidden):
            return type(rank).attend(self, block, q, k, v)
        batch, length, heads, _ = q.shape
        out = torch.zeros_like(q, dtype=self.place("partial"))
        return out, q.new_full((batch, heads, length), empty_lse, dtype=self.lse_dtype)

    return await ring_forward(changed(rank, attend=attend), every_block, q, k, v)


def softmax(q: Tensor, k: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Weights (B, H, Sq, Sk) and lse (B, H, Sq) in float64; causal aligned at the bottom right."""
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), keys.double()) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(columns - rows + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse[..., None]), lse


def apply(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (B, H, Sq, Sk) times values (B, Sk, Hk, D): (B, Sq, H, D) in float64."""
    values = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
    return torch.einsum("bhqk,bkhd->bqhd", weights, values.double())
