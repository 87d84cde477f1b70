"""The unfused form inside torch, which `scaled_dot_product_attention` falls back on: any dtype, CPU and CUDA.

It scales q and k each by the root of the scale. Its backward is autograd's. It returns no lse: lse is computed beside
it, from the same scaled q and k in the accumulation dtype, and says nothing about the kernel.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.kernel.base import ALL_DTYPES, Abilities, Gradients, How, Kernel, gradients_by_autograd
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import lse_beside
from accuracy.runtime import arithmetic

aten = torch.ops.aten


@dataclass(frozen=True)
class TorchMath(Kernel):
    """reduced_sums: 16-bit inputs are computed in 16 bits (torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, on
    the CPU too); tf32: products of float32 in TF32 (CUDA)."""

    reduced_sums: bool = False
    tf32: bool = False

    def abilities(self, device: str) -> Abilities:
        """Every dtype and head dim; TF32 on CUDA only."""
        missing = self.without_tf32("torch_math", device)
        return Abilities(dtypes=ALL_DTYPES, features=("window", "head_dim_v", "dropout"), missing=missing)

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """Count all scores."""
        return problem.pairs

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        mask = how.sight(q, k).bias(q.dtype, q.device)  # the operator would add booleans as numbers
        with arithmetic.switched(reduced_attention_sums=self.reduced_sums, tf32_products=self.tf32):
            chosen = None if how.dropout is None else how.dropout.kept(range(q.shape[0]), q.shape[2], q) > 0
            rate = 0.0 if how.dropout is None else how.dropout.rate
            out, _ = aten._scaled_dot_product_attention_math(
                *heads.first(q, k, v), mask, rate, False, chosen, scale=how.scale, enable_gqa=q.shape[2] != k.shape[2]
            )
            return out.transpose(1, 2), lse_beside(q, k, how.scale, mask)

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        with arithmetic.switched(reduced_attention_sums=self.reduced_sums, tf32_products=self.tf32):
            return gradients_by_autograd(partial(self._forward, how=how), dout, q, k, v, out, lse)


KERNEL = TorchMath
