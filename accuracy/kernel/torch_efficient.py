"""The memory-efficient kernel inside torch (cutlass, from xformers): the only fused one on CUDA that takes float32.

No TF32 switch reaches it: from compute capability 8.0 on, float32 products are always three products in TF32, which
keeps about float32's accuracy (cutlass' OpMultiplyAddFastF32; torch, mem_eff_attention/gemm_kernel_utils.h). It knows
no GQA: the gradients of copied heads, each rounded to the inputs' dtype by the kernel, are summed in float32.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.kernel.base import Abilities, Gradients, How, Kernel
from accuracy.kernel.block import heads

aten = torch.ops.aten
FULL, BOTTOM_RIGHT = 0, 2  # torch's CustomMaskType; 1 is causal aligned at the top left
LSE_MULTIPLE = 32  # rows to which the kernel pads lse, with +inf


@dataclass(frozen=True)
class TorchEfficient(Kernel):
    """deterministic: keys are not split over blocks whose sums of dq are added as they come (torch's default)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """CUDA: float32, float16 and bfloat16, any head_dim in multiples of 8."""
        if device != "cuda":
            return Abilities(missing="needs a CUDA device; use kernel=chunked, the same algorithm in torch products")
        if torch.version.hip:
            return Abilities(missing="is another kernel on ROCm, without masks aligned at the bottom right")
        dtypes = ("float32", "bfloat16", "float16")
        return Abilities(dtypes=dtypes, head_dim_multiple=8, deterministic=self.deterministic)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        out, lse, *_ = aten._efficient_attention_forward(
            q, k, v, None, None, None, None, None, 0.0, BOTTOM_RIGHT if how.causal else FULL, True, scale=how.scale
        )
        return out, lse[..., : q.shape[1]].contiguous()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        length, keys, heads_kv = q.shape[1], k.shape[1], k.shape[2]
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        padded = F.pad(lse, (0, -length % LSE_MULTIPLE), value=math.inf).contiguous()  # it refuses other strides
        no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = aten._efficient_attention_backward(
            dout, q, k, v, None, out.contiguous(), None, None, length, keys, padded, 0.0, no_dropout, no_dropout,
            BOTTOM_RIGHT if how.causal else FULL, False,
            scale=how.scale, num_splits_key=1 if self.deterministic else None,
        )  # fmt: skip
        return dq, heads.summed(dk, heads_kv, torch.float32), heads.summed(dv, heads_kv, torch.float32)


KERNEL = TorchEfficient
