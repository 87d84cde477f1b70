"""FlashAttention-4 (`flash_attn.cute`, the package flash-attn-4): Hopper and Blackwell, 16-bit, compiled at first use.

An optional extra. Its FP8, forward alone on compute capability 10, is not called. flash-attn 2 carries an old copy of
the same folder; only the package's own is taken.
"""

import importlib
import inspect
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import one_line
from accuracy.kernel.base import FLASH, NEEDS_CUDA, Abilities, Gradients, How, Kernel

INSTALL = "install attention-accuracy[flash4]"
HEAD_DIM_MAX = {9: 256, 10: 128, 11: 128}  # by the compute capability's first number


@cache
def _interface() -> Any:
    return importlib.import_module("flash_attn.cute.interface")


@cache
def _missing() -> str:
    """Why the package cannot be used, or nothing."""
    try:
        known = inspect.signature(_interface()._flash_attn_bwd).parameters
    except Exception as error:  # a copy that does not fit its compiler fails in any way it likes
        return f"cannot be imported ({one_line(error)[:200]}); {INSTALL}"
    return "" if "deterministic" in known else f"is an old copy that flash-attn 2 carries; {INSTALL}"


@dataclass(frozen=True)
class FlashAttn4(Kernel):
    """deterministic: dq (and dk, dv of shared heads) summed in a fixed order."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16, head_dim in multiples of 8, to 256 on Hopper and 128 on Blackwell."""
        if device != "cuda":
            return Abilities(missing=NEEDS_CUDA)
        major = torch.cuda.get_device_capability()[0]
        if major not in HEAD_DIM_MAX:
            missing = f"needs compute capability 9, 10 or 11, this GPU has {major}; use kernel=torch_flash"
            return Abilities(missing=missing)
        here = replace(FLASH, head_dim_min=8, head_dim_max=HEAD_DIM_MAX[major], missing=_missing())
        return replace(here, deterministic=self.deterministic)

    def build(self, device: str) -> "FlashAttn4":
        """The package is imported now, before another's stand-in may have its name."""
        _interface()
        return self

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        out, lse, *_ = _interface()._flash_attn_fwd(
            q, k, v, softmax_scale=how.scale, causal=how.causal, return_lse=True
        )
        return out, lse.contiguous()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        gradients: Gradients = _interface()._flash_attn_bwd(
            q, k, v, out, dout, lse.contiguous(),
            softmax_scale=how.scale, causal=how.causal, deterministic=self.deterministic,
        )  # fmt: skip
        return gradients


KERNEL = FlashAttn4
