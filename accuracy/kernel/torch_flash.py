"""The flash kernels inside torch: on the CPU for every dtype, on CUDA for the 16-bit ones; both give lse.

The operators behind `scaled_dot_product_attention`. The CPU's aligns causal masks at the top left: where Sq != Sk it
gets the bottom-right mask as a tensor instead.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.kernel.base import ALL_DTYPES, FLASH, Abilities, Gradients, How, Kernel
from accuracy.kernel.block import flash_fold, heads
from accuracy.kernel.block.sight import Sight
from accuracy.runtime import arithmetic, given_mask

aten = torch.ops.aten


@dataclass(frozen=True)
class TorchFlash(Kernel):
    """deterministic: dq summed in a fixed order on CUDA (the CPU kernel always is deterministic)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """CPU: every dtype and head dim. CUDA: bfloat16 and float16, head_dim to 256 in multiples of 8."""
        if device == "cpu":
            return Abilities(dtypes=ALL_DTYPES, features=("window", "attn_mask"), short_sums=True)
        return replace(FLASH, deterministic=self.deterministic, features=("window",))

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """On the CPU, a mask other than the operator's own is a tensor: a quarter of a score for each pair."""
        plain = problem.window is None and problem.attn_mask is None
        own = device != "cpu" or (plain and (problem.seqlen_q is None or not problem.causal))
        return super().scores_at_once(problem, device) + (0 if own else problem.queries * problem.seqlen // 4)

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `flash_fold.foldable`."""
        return flash_fold.foldable(way, calls, q, k)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        if q.is_cuda:
            out, lse, *_ = aten._flash_attention_forward(
                q, k, v, None, None, q.shape[1], k.shape[1], 0.0, how.causal, False, scale=how.scale, **_sides(how)
            )
            return out, lse
        own, mask = _masks(q, k, how)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            *heads.first(q, k, v), 0.0, own, attn_mask=mask, scale=how.scale
        )
        return out.transpose(1, 2), lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        if q.is_cuda:
            seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
            with arithmetic.deterministic(self.deterministic):  # which the operator reads, but for warn-only
                gradients: Gradients = aten._flash_attention_backward(
                    dout, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1],
                    0.0, how.causal, seed, seed[:0], scale=how.scale, **_sides(how),
                )  # fmt: skip
            return gradients
        own, mask = _masks(q, k, how)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *heads.first(dout, q, k, v, out), lse, 0.0, own, attn_mask=mask, scale=how.scale
        )
        return heads.first(*gradients)


def _sides(how: How) -> dict[str, int]:
    """-1: no limit. The operator reads a window only where one is given."""
    if how.window is None:
        return {}
    left, right = (-1 if side is None else side for side in how.window)
    return {"window_size_left": left, "window_size_right": right}


def _masks(q: Tensor, k: Tensor, how: How) -> tuple[bool, Tensor | None]:
    """Whether the operator masks by itself, and the mask that it is given: its own causal one is aligned top left."""
    rows, keys = q.shape[1], k.shape[1]
    if how.mask is not None:
        mask, hidden = given_mask.added(how.mask, q.dtype), how.sight(q, k).bias(q.dtype, q.device)
        return False, mask if hidden is None else mask + hidden
    if how.window is None and (rows == keys or not how.causal):
        return how.causal, None
    width = 1 << (keys - 1).bit_length()  # few masks are kept: that of fewer keys is the right part of a wider one
    bias = _bias(replace(how.sight(q, k), keys=width), q.dtype)
    return False, None if bias is None else bias[..., width - keys :]


@lru_cache(maxsize=16)
def _bias(sight: Sight, dtype: torch.dtype) -> Tensor | None:
    """0 where a row sees a key, -inf elsewhere: (1, 1, Sq, Sk); None: all see all."""
    bias = sight.bias(dtype, torch.device("cpu"))
    return None if bias is None else bias[None, None]


KERNEL = TorchFlash
