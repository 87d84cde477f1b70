"""The unfused form inside torch, which `scaled_dot_product_attention` falls back on: any dtype, CPU and CUDA.

It scales q and k each by the root of the scale, forms all scores, and computes 16-bit inputs in float32 unless reduced
sums are allowed, when everything is rounded to 16 bits after every step. Its backward is autograd's. It returns no lse:
lse is computed beside it, from the same scaled q and k in the accumulation dtype, and says nothing about the kernel.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.core.masks import Window
from accuracy.kernel.base import ALL_DTYPES, Abilities, KernelKnobs
from accuracy.kernel.block import by_autograd, heads
from accuracy.kernel.block.sight import Sight
from accuracy.runtime import arithmetic

aten = torch.ops.aten


@dataclass(frozen=True)
class TorchMath(KernelKnobs):
    """reduced_sums: 16-bit inputs are computed in 16 bits (torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, on
    the CPU too); tf32: products of float32 in TF32 (CUDA)."""

    reduced_sums: bool = False
    tf32: bool = False

    def abilities(self, device: str) -> Abilities:
        """Every dtype and head dim; TF32 on CUDA only."""
        missing = "has no tf32 on the CPU; set kernel.torch_math.tf32=false" if self.tf32 and device == "cpu" else ""
        return Abilities(dtypes=ALL_DTYPES, features=("window",), missing=missing)

    def held_bytes(self, case: Case) -> int:
        """Scores, softmax, mask, their gradients and those of lse: ten times all scores of all heads."""
        problem = case.problem
        scores = problem.batch * problem.heads * problem.queries * problem.seqlen
        return 10 * scores * FORMATS[accumulation_dtype(case.dtype)].bytes

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype,
        window: Window | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See `Kernel.forward`."""
        out, lse = self._attend(q, k, v, scale, Sight.of(q, k, causal, window))
        return out.to(out_dtype), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype, window: Window | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Kernel.backward`."""
        with self._arithmetic():
            gradients = by_autograd.gradients(
                lambda q, k, v: self._attend(q, k, v, scale, Sight.of(q, k, causal, window)), dout, q, k, v, out, lse
            )
        dq, dk, dv = (gradient.to(gradient_dtype) for gradient in gradients)
        return dq, dk, dv

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, sight: Sight) -> tuple[Tensor, Tensor]:
        mask = sight.bias(q.dtype, q.device)  # the operator would add booleans as numbers
        with self._arithmetic():
            out, _ = aten._scaled_dot_product_attention_math(
                *heads.first(q, k, v), mask, 0.0, False, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
            )
            return out.transpose(1, 2), _lse(q, k, scale, mask)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic.switched(reduced_attention_sums=self.reduced_sums, tf32_products=self.tf32)


def _lse(q: Tensor, k: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """(B, H, Sq) in the accumulation dtype."""
    dtype = getattr(torch, accumulation_dtype(str(q.dtype).removeprefix("torch.")))
    root = math.sqrt(scale)
    scores = (heads.by_group(q, k.shape[2], dtype) * root) @ (heads.by_kv_head(k, dtype) * root).mT
    if mask is not None:
        scores = scores + mask
    return torch.logsumexp(scores, dim=-1).flatten(1, 2)


KERNEL = TorchMath
