"""cuDNN's attention, as torch calls it: CUDA, 16-bit; dq is summed by atomic adds, and torch offers no other.

Its causal mask is aligned at the top left: see `accuracy.kernel.base.square`.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.kernel.base import FLASH, NEEDS_CUDA, Abilities, Gradients, How, Kernel, square
from accuracy.kernel.block import heads

aten = torch.ops.aten
HEAD_DIMS = (256, 192, 128, 64)


@cache
def _takes(head_dim: int) -> bool:
    """Whether torch would choose cuDNN for this head dim, gradients included."""
    x = torch.zeros(1, 1, 128, head_dim, dtype=torch.float16, device="cuda", requires_grad=True)
    params = torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, True, False)
    return bool(torch.backends.cuda.can_use_cudnn_attention(params, False))


@dataclass(frozen=True)
class TorchCudnn(Kernel):
    """No knobs."""

    def abilities(self, device: str) -> Abilities:
        """CUDA: bfloat16 and float16, head_dim in multiples of 8 as far as the installed cuDNN takes it on this GPU."""
        if device != "cuda":
            return Abilities(missing=NEEDS_CUDA)
        largest = next((head_dim for head_dim in HEAD_DIMS if _takes(head_dim)), None)
        if largest is None:
            return Abilities(missing="is refused by torch on this GPU (torch.backends.cuda.can_use_cudnn_attention)")
        return replace(FLASH, head_dim_max=largest, deterministic=False)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        rows = q.shape[1]
        (q,) = square(how, k, q)
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention(
            *heads.first(q, k, v), None, True, 0.0, how.causal, False, scale=how.scale
        )
        lse = lse.reshape(out.shape[:3])  # (B, H, S) or (B, H, S, 1), by torch's version
        return out.transpose(1, 2)[:, -rows:], lse[..., -rows:].contiguous()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        rows = q.shape[1]
        dout, q, out = square(how, k, dout, q, out)
        lse = F.pad(lse, (q.shape[1] - rows, 0)).contiguous()
        no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
        gradients = aten._scaled_dot_product_cudnn_attention_backward(
            *heads.first(dout, q, k, v, out), lse.unsqueeze(-1) if _has_four_dimensions() else lse, no_dropout,
            no_dropout, None, None, None, q.shape[1], k.shape[1], 0.0, how.causal, scale=how.scale,
        )  # fmt: skip
        dq, dk, dv = (gradient.transpose(1, 2) for gradient in gradients)
        return dq[:, -rows:], dk, dv


@cache
def _has_four_dimensions() -> bool:
    """Whether this torch's backward takes lse as (B, H, S, 1): as its own forward returns it."""
    x = torch.zeros(1, 1, 128, 64, dtype=torch.float16, device="cuda")
    return bool(aten._scaled_dot_product_cudnn_attention(x, x, x, None, True)[1].dim() == 4)


KERNEL = TorchCudnn
