"""SageAttention 1 (arXiv 2410.02367; the package sageattention 1.0.6): int8 q and k by blocks, P and v in float16.

Forward only, and no lse. The package subtracts the mean key from the caller's k in place: it is given a copy. Its
emulation is policy `sage` of `quantised`, with a key_chunk of 64.
"""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.kernel.base import Abilities, Gradients, How, KernelKnobs
from accuracy.kernel.triton import interpreted


class _OnCuda(Tensor):
    """A CPU tensor of Triton's interpreter: the package asks where a tensor is."""

    is_cuda = property(lambda self: True)


@dataclass(frozen=True)
class Sage(KernelKnobs):
    """smooth_k: the mean key is taken off."""

    smooth_k: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32, head dims 64, 96 and 128; out alone. On the CPU in Triton's interpreter."""
        interpreting = os.environ.get("TRITON_INTERPRET") == "1"
        missing = (
            "" if device == "cuda" or interpreting else "needs a CUDA device; use kernel=quantised with policy=sage"
        )
        if importlib.util.find_spec("sageattention") is None:
            missing = "needs the package sageattention; pip install sageattention==1.0.6"
        dtypes = ("bfloat16", "float16", "float32") if device == "cuda" else ("float16", "float32")
        return Abilities(
            dtypes=dtypes, head_dim_min=64, head_dim_max=128, head_dim_multiple=32, out_only=True, missing=missing
        )

    def build(self, device: str) -> "Sage":
        """On a CPU the interpreter is mended."""
        if device != "cuda":
            interpreted.mend()
        return self

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Any]:
        from sageattention import sageattn

        rows = q.shape[1]
        missing = k.shape[1] - rows if how.causal else 0  # its causal mask is square: rows of zeros in front
        given = [F.pad(q, (0, 0, 0, 0, missing, 0)) if missing else q, k.clone(), v]
        given = given if q.is_cuda else [x.clone().as_subclass(_OnCuda) for x in given]
        out = sageattn(
            *given, tensor_layout="NHD", is_causal=how.causal, sm_scale=how.scale, smooth_k=self.smooth_k
        )  # fmt: skip
        return out.as_subclass(torch.Tensor)[:, missing:], None

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        raise NotImplementedError("SageAttention 1 has no backward")


KERNEL = Sage
