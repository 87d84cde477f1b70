"""A kernel on blocks of a sequence: the one place where a block's mask and the scores' form become its arguments.

A kernel that does not state an ability is never given the argument for it (`accuracy.grid` declines such cases).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.dtype import accumulation_dtype
from accuracy.kernel.base import Kernel
from accuracy.masks import Block


@dataclass(frozen=True)
class Scores:
    """What becomes of q k^T before the softmax: s = scale q k^T, then softcap tanh(s / softcap) where there is one."""

    scale: float
    softcap: float | None = None

    def arguments(self, block: Block) -> dict[str, Any]:
        """The keywords of `Kernel.forward` and `backward` that say how a block is seen."""
        window = {} if block.window is None else {"window": block.window}
        softcap = {} if self.softcap is None else {"softcap": self.softcap}
        return {"scale": self.scale, "causal": block.causal, **window, **softcap}


def forward(
    kernel: Kernel, scores: Scores, block: Block, q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The kernel's partial of one block: out (B, S', H, D) and lse (B, H, S')."""
    return kernel.forward(
        q[:, block.query], k[:, block.key], v[:, block.key], **scores.arguments(block), out_dtype=out_dtype
    )


def backward(
    kernel: Kernel, scores: Scores, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    lse: Tensor, gradient_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The kernel's dq of the block's rows and dk, dv of its keys, for out and lse over all keys."""
    return kernel.backward(
        dout[:, block.query], q[:, block.query], k[:, block.key], v[:, block.key],
        out[:, block.query], lse[:, :, block.query],
        **scores.arguments(block), gradient_dtype=gradient_dtype,
    )  # fmt: skip


def forward_rows(
    kernel: Kernel, scores: Scores, blocks: Sequence[Block], q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """out (B, Sq, H, D) and lse (B, H, Sq) where every row is in one block, so that nothing is merged."""
    if _is_whole(blocks, q, k):
        return forward(kernel, scores, blocks[0], q, k, v, out_dtype)
    _assert_each_row_once(blocks, q.shape[1])
    out = torch.empty_like(q, dtype=out_dtype)
    lse: Tensor | None = None
    for block in blocks:
        out[:, block.query], part = forward(kernel, scores, block, q, k, v, out_dtype)
        lse = part.new_empty(*part.shape[:2], q.shape[1]) if lse is None else lse
        lse[:, :, block.query] = part
    assert lse is not None
    return out, lse


def backward_rows(
    kernel: Kernel, scores: Scores, blocks: Sequence[Block], dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    lse: Tensor, gradient_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq (B, Sq, H, D), dk, dv (B, S, Hk, D) where every row is in one block; 0 for keys that no row sees.

    Keys of several blocks: their gradients are summed in the accumulation dtype, which adds no rounding to one.
    """
    if _is_whole(blocks, q, k):
        return backward(kernel, scores, blocks[0], dout, q, k, v, out, lse, gradient_dtype)
    wide = getattr(torch, accumulation_dtype(str(gradient_dtype).removeprefix("torch.")))
    dq = torch.empty_like(q, dtype=gradient_dtype)
    dk, dv = (torch.zeros_like(x, dtype=wide) for x in (k, v))
    for block in blocks:
        dq[:, block.query], dk_block, dv_block = backward(
            kernel, scores, block, dout, q, k, v, out, lse, gradient_dtype
        )
        dk[:, block.key] += dk_block
        dv[:, block.key] += dv_block
    return dq, dk.to(gradient_dtype), dv.to(gradient_dtype)


def _is_whole(blocks: Sequence[Block], q: Tensor, k: Tensor) -> bool:
    return [(each.query, each.key) for each in blocks] == [(slice(0, q.shape[1]), slice(0, k.shape[1]))]


def _assert_each_row_once(blocks: Sequence[Block], rows: int) -> None:
    covered = sorted((block.query.start, block.query.stop) for block in blocks)
    if [begin for begin, _ in covered] + [rows] != [0] + [end for _, end in covered]:
        raise RuntimeError(f"rows {covered} are not each of {rows} rows once")
