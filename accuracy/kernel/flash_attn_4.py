"""FlashAttention-4 (`flash_attn.cute`, the package flash-attn-4): Hopper and Blackwell, 16-bit, compiled at first use.

An optional extra. flash-attn 2 carries an old copy of the same folder; only the package's own is taken.
"""

import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Abilities, KernelKnobs

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
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return f"cannot be imported ({text}); {INSTALL}"
    return "" if "deterministic" in known else f"is an old copy that flash-attn 2 carries; {INSTALL}"


@dataclass(frozen=True)
class FlashAttn4(KernelKnobs):
    """deterministic: dq (and dk, dv of shared heads) summed in a fixed order."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16, head_dim in multiples of 8, to 256 on Hopper and 128 on Blackwell."""
        if device != "cuda":
            return Abilities(missing="needs a CUDA device; use kernel=torch_flash or kernel=eager")
        major = torch.cuda.get_device_capability()[0]
        if major not in HEAD_DIM_MAX:
            return Abilities(
                missing=f"needs compute capability 9, 10 or 11, this GPU has {major}; use kernel=torch_flash"
            )
        if reason := _missing():
            return Abilities(missing=reason)
        return Abilities(
            dtypes=("bfloat16", "float16"),
            head_dim_min=8,
            head_dim_max=HEAD_DIM_MAX[major],
            head_dim_multiple=8,
            deterministic=self.deterministic,
        )

    def build(self, device: str) -> "FlashAttn4":
        """The package is imported now, before another's stand-in may have its name."""
        _interface()
        return self

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        out, lse, *_ = _interface()._flash_attn_fwd(q, k, v, softmax_scale=scale, causal=causal, return_lse=True)
        return out.to(out_dtype), lse.contiguous()

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Kernel.backward`."""
        dq, dk, dv = _interface()._flash_attn_bwd(
            q, k, v, out, dout, lse.contiguous(),
            softmax_scale=scale, causal=causal, deterministic=self.deterministic,
        )  # fmt: skip
        return dq.to(gradient_dtype), dk.to(gradient_dtype), dv.to(gradient_dtype)


KERNEL = FlashAttn4
