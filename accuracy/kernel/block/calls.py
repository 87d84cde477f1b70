"""A kernel on blocks of a sequence: where a block's mask and the scores' form become its arguments; and sinks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.kernel.base import Kernel, dtype_of


@dataclass(frozen=True)
class Scores:
    """What becomes of q k^T: s = scale q k^T, softcap tanh(s / softcap) where there is one. mask: of all tokens, see
    `Kernel`; dbias: a sum to which backward calls add the gradient of a bias, (1 or B, 1 or H, 1 or Sq, 1 or S)."""

    scale: float
    softcap: float | None = None
    mask: Tensor | None = None
    dbias: Tensor | None = None

    def arguments(self, block: Block) -> dict[str, Any]:
        """The keywords of `Kernel.forward` and `backward` that say how a block is seen."""
        window = {} if block.window is None else {"window": block.window}
        softcap = {} if self.softcap is None else {"softcap": self.softcap}
        mask = {} if self.mask is None else {"mask": self.mask[..., block.query, block.key]}
        return {"scale": self.scale, "causal": block.causal, **window, **softcap, **mask}


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
    dbias: dict[str, Any] = {} if scores.dbias is None else {"dbias": part_of(scores.dbias, block.query, block.key)}
    return kernel.backward(
        dout[:, block.query], q[:, block.query], k[:, block.key], v[:, block.key],
        out[:, block.query], lse[:, :, block.query],
        **scores.arguments(block), **dbias, gradient_dtype=gradient_dtype,
    )  # fmt: skip


def part_of(bias: Tensor, rows: slice, keys: slice) -> Tensor:
    """A view of a bias (B, H, 1 or Sq, 1 or S) at some rows and keys."""
    every = slice(None)
    return bias[..., rows if bias.shape[2] > 1 else every, keys if bias.shape[3] > 1 else every]


def forward_rows(
    attend: Callable[[Block], tuple[Tensor, Tensor]], blocks: Sequence[Block], q: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    """out (B, Sq, H, D) and lse (B, H, Sq) where every row is in one block: nothing is merged. attend: a block's."""
    if _is_whole(blocks, q, k):
        return attend(blocks[0])
    out, lse = zip(*(attend(block) for block in _by_row(blocks, q.shape[1])), strict=True)
    return torch.cat(out, dim=1), torch.cat(lse, dim=2)


def backward_rows(
    differentiate: Callable[[Block], Sequence[Tensor]], blocks: Sequence[Block], q: Tensor, k: Tensor
) -> tuple[Tensor, ...]:
    """dq (B, Sq, H, D), dk, dv (B, S, Hk, D) where every row is in one block; 0 for keys that no row sees. Gradients of
    keys of several blocks are summed in the accumulation dtype. differentiate: a block's dq, dk, dv."""
    if _is_whole(blocks, q, k):
        return tuple(differentiate(blocks[0]))
    blocks = _by_row(blocks, q.shape[1])
    dq, *of_keys = zip(*(differentiate(block) for block in blocks), strict=True)
    sums = []
    for parts in of_keys:
        shape = *k.shape[:3], parts[0].shape[3]  # values may be wider than keys
        total = parts[0].new_zeros(shape, dtype=dtype_of("accumulate", parts[0]))
        for block, part in zip(blocks, parts, strict=True):
            total[:, block.key] += part
        sums.append(total.to(parts[0].dtype))
    return torch.cat(dq, dim=1), *sums


def _is_whole(blocks: Sequence[Block], q: Tensor, k: Tensor) -> bool:
    return [(each.query, each.key) for each in blocks] == [(slice(0, q.shape[1]), slice(0, k.shape[1]))]


def _by_row(blocks: Sequence[Block], rows: int) -> list[Block]:
    blocks = sorted(blocks, key=lambda block: block.query.start)
    if [block.query.start for block in blocks] + [rows] != [0] + [block.query.stop for block in blocks]:
        raise RuntimeError(f"rows of {blocks} are not each of {rows} rows once")
    return blocks


def apply_sinks(out: Tensor, lse: Tensor, sinks: Sequence[float]) -> tuple[Tensor, Tensor]:
    """out (B, S, H, D) and lse (B, H, S) with attention sinks: a logit of each head that takes part in the softmax and
    has no value. In their dtypes; sinks: one a head.

    With z = ln(exp(lse) + exp(sink)), out becomes exp(lse - z) out and lse becomes z, as models do over kernels that
    know no sinks (the rescaled out is rounded once more). A backward that takes out and lse as given needs no change.
    """
    joint = torch.logaddexp(lse, _by_head(sinks, lse))
    share = torch.exp(lse - joint).transpose(1, 2).unsqueeze(-1)
    return (out.to(lse.dtype) * share).to(out.dtype), joint


def sink_gradient(dout: Tensor, out: Tensor, lse: Tensor, sinks: Sequence[float]) -> Tensor:
    """dsink = - sum exp(sink - lse) sum_d dout out, (1, 1, H), of these tokens, for out and lse after `apply_sinks`, in
    the accumulation dtype."""
    dtype = dtype_of("accumulate", dout)
    delta = (dout.to(dtype) * out.to(dtype)).sum(-1).transpose(1, 2)
    share = torch.exp(_by_head(sinks, lse) - lse).to(dtype)
    return -(share * delta).sum((0, 2))[None, None]


def sink_total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of all ranks' dsink, in rank order."""
    return reduce(Tensor.add, parts)


def _by_head(sinks: Sequence[float], lse: Tensor) -> Tensor:
    return torch.tensor(sinks, dtype=lse.dtype, device=lse.device)[:, None]
