"""SageAttention 1 (arXiv 2410.02367; the package sageattention 1.0.6): int8 q and k by blocks, P and v in float16.

Forward only, and no lse. The package subtracts the mean key from the caller's k in place: it is given a copy. Its
emulation is policy `sage` of `quantised`, with a key_chunk of 64.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Abilities, How, package_missing, square
from accuracy.kernel.triton.available import InTriton, interpreting


class _OnCuda(Tensor):
    """A CPU tensor of Triton's interpreter: the package asks where a tensor is."""

    is_cuda = property(lambda self: True)


@dataclass(frozen=True)
class Sage(InTriton):
    """smooth_k: the mean key is taken off."""

    smooth_k: bool = True

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32, head dims 64, 96 and 128; out alone. On the CPU in Triton's interpreter."""
        missing = package_missing("sageattention", "the package sageattention; pip install sageattention==1.0.6")
        if device != "cuda" and not interpreting() and not missing:
            missing = "needs a CUDA device; use kernel=quantised with policy=sage"
        dtypes = ("bfloat16", "float16", "float32") if device == "cuda" else ("float16", "float32")
        return Abilities(
            dtypes=dtypes, head_dim_min=64, head_dim_max=128, head_dim_multiple=32, out_only=True, missing=missing
        )

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Any]:
        from sageattention import sageattn

        given = [*square(how, k, q), k.clone(), v]
        given = given if q.is_cuda else [x.clone().as_subclass(_OnCuda) for x in given]
        out = sageattn(
            *given, tensor_layout="NHD", is_causal=how.causal, sm_scale=how.scale, smooth_k=self.smooth_k
        )  # fmt: skip
        return out.as_subclass(torch.Tensor)[:, -q.shape[1] :], None


KERNEL = Sage
