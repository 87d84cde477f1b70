"""The flash-attn 2 package's low-level forward and backward, which ring-flash-attention calls: an optional extra."""

import importlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import FLASH, NEEDS_CUDA, Abilities, Gradients, How, KernelKnobs
from accuracy.kernel.block import flash_fold


@cache
def _interface() -> Any:
    return importlib.import_module("flash_attn.flash_attn_interface")


def _sight(how: How) -> dict[str, Any]:
    """-1: no limit; 0.0: no cap."""
    left, right = (-1 if side is None else side for side in how.window or (None, None))
    sides = {"window_size_left": left, "window_size_right": right}
    return {"softmax_scale": how.scale, "causal": how.causal, "softcap": how.softcap or 0.0, **sides}


def _plain(function: Any) -> Any:
    """The Python function inside a torch custom operator, whose dispatcher takes more time than a small block."""
    return getattr(function, "_init_fn", function)


@dataclass(frozen=True)
class FlashAttn(KernelKnobs):
    """deterministic: dq summed in a fixed order; false lets atomic adds finish as they come (flash-attn's default)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16 on CUDA, head_dim to 256 in multiples of 8, partials in the inputs' dtype only."""
        if device != "cuda":
            return Abilities(missing=NEEDS_CUDA)
        try:
            _interface()
        except ImportError as error:
            return Abilities(missing=f"cannot be imported ({error}); install attention-accuracy[flash]")
        return replace(FLASH, deterministic=self.deterministic, features=("window", "softcap"))

    def build(self, device: str) -> "FlashAttn":
        """The package is imported now, before another's stand-in may have its name."""
        _interface()
        return self

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `accuracy.kernel.base.FoldingKernel`. What adds atomically has no order that a fold could change."""
        if way == "backward" and not self.deterministic:
            return max(1, min(calls, flash_fold.GRID_LIMIT // q.shape[0]))
        return flash_fold.foldable(way, calls, q, k)

    def forward_split(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, splits: int
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, the keys cut into `splits` parts that are joined in float32 (0: its own choice of a number)."""
        out, lse = _interface().flash_attn_with_kvcache(
            q, k, v, softmax_scale=scale, causal=causal, num_splits=splits, return_softmax_lse=True
        )
        return out, lse

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        out, lse, *_ = _plain(_interface()._flash_attn_forward)(
            q, k, v, dropout_p=0.0, **_sight(how), alibi_slopes=None, return_softmax=False
        )
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _plain(_interface()._flash_attn_backward)(
            dout, q, k, v, out, lse.contiguous(), *gradients,
            dropout_p=0.0, **_sight(how), alibi_slopes=None, deterministic=self.deterministic,
        )  # fmt: skip
        return gradients


KERNEL = FlashAttn
