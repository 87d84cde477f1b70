"""flash-attn's own split-KV (`flash_attn_with_kvcache`, forward only): parts joined inside its kernel, in float32.

`single_device` with kernel=flash_attn lets flash-attn choose a number of splits for few queries; this sets it.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le
from torch import Tensor

from accuracy.core.case import Case
from accuracy.variant.base import ForwardOnly, Rank
from accuracy.world.base import Tensors

MOST_SPLITS = 128  # that flash-attn 2 joins


@dataclass(frozen=True)
class Parts:
    """splits: parts of the keys, cut at flash-attn's block borders; 0: as many as it finds best for the device."""

    splits: Annotated[int, Ge(0), Le(MOST_SPLITS)] = 0


class FlashAttnSplit(ForwardOnly):
    """One call of flash-attn, which has no backward for it."""

    def unsupported(self, case: Case) -> str | None:
        """One device and flash-attn only."""
        if case.kernel.name != self.kernel:
            name, kernel = case.variant.name, case.kernel.name
            return f"{name} is flash-attn's own splitting, on CUDA devices: use kernel={self.kernel}, not {kernel}"
        return super().unsupported(case)

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """q (B, Sq, H, D), k, v (B, S, Hk, D) -> out (B, Sq, H, D), lse (B, H, Sq)."""
        kernel: Any = rank.kernel
        out, lse = kernel.forward_split(q, k, v, scale=rank.scale, causal=rank.causal, splits=rank.options.splits)
        return out, lse


SCHEDULE = FlashAttnSplit(features=("cross_lengths",), one_device=True, kernel="flash_attn", options=Parts)
