"""The memory-efficient kernel inside torch (cutlass, from xformers): the only fused one on CUDA that takes float32.

It has no TF32 switch, and none in this process reaches it: from compute capability 8.0 on, its float32 products are
always three products in TF32 (cutlass' OpMultiplyAddFastF32 splits each factor into two of 11 bits and leaves out
the product of the two low parts), which keeps about float32's accuracy; before, they are plain float32. (torch,
mem_eff_attention/gemm_kernel_utils.h.) 16-bit inputs: P is rounded to them before P V, sums are float32.

The operators below `scaled_dot_product_attention`, because they take masks aligned at the bottom right. They know no
GQA: key/value heads are copied for every query head, and the gradients of the copies, each rounded to the inputs' dtype
by the kernel, are summed in float32.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import Abilities, KernelKnobs
from accuracy.kernel.block import heads

aten = torch.ops.aten
FULL, BOTTOM_RIGHT = 0, 2  # torch's CustomMaskType; 1 is causal aligned at the top left
LSE_MULTIPLE = 32  # rows to which the kernel pads lse, with +inf


@dataclass(frozen=True)
class TorchEfficient(KernelKnobs):
    """deterministic: keys are not split over blocks whose sums of dq are added as they come (torch's default)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """CUDA: float32, float16 and bfloat16, any head_dim in multiples of 8."""
        if device != "cuda":
            return Abilities(
                missing="needs a CUDA device; use kernel=chunked, the same algorithm out of torch products"
            )
        if torch.version.hip:
            return Abilities(missing="is another kernel on ROCm, without masks aligned at the bottom right")
        return Abilities(
            dtypes=("float32", "bfloat16", "float16"), head_dim_multiple=8, deterministic=self.deterministic
        )

    def held_bytes(self, case: Case) -> int:
        """Copies of k, v for every query head and their gradients; the sums of those in float32, one at a time."""
        problem = case.problem
        if problem.heads == problem.heads_kv:
            return 0
        return problem.batch * problem.seqlen * problem.heads * problem.head_dim * (4 * FORMATS[case.dtype].bytes + 4)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        out, lse, *_ = aten._efficient_attention_forward(
            q, k, v, None, None, None, None, None, 0.0, BOTTOM_RIGHT if causal else FULL, True, scale=scale
        )
        return out.to(out_dtype), lse[..., : q.shape[1]].contiguous()

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Kernel.backward`."""
        length, keys, heads_kv = q.shape[1], k.shape[1], k.shape[2]
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        padded = F.pad(lse, (0, -length % LSE_MULTIPLE), value=math.inf).contiguous()  # it refuses other strides
        no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = aten._efficient_attention_backward(
            dout, q, k, v, None, out.contiguous(), None, None, length, keys, padded, 0.0, no_dropout, no_dropout,
            BOTTOM_RIGHT if causal else FULL, False, scale=scale, num_splits_key=1 if self.deterministic else None,
        )  # fmt: skip
        dk, dv = (heads.summed(x, heads_kv, torch.float32).to(gradient_dtype) for x in (dk, dv))
        return dq.to(gradient_dtype), dk, dv


KERNEL = TorchEfficient
