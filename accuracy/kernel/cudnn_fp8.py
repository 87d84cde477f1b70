"""cuDNN's FP8 attention (nvidia-cudnn-frontend): e4m3 or e5m2, forward and backward, 8-bit results; Hopper and later.

One float32 scale a tensor. The scales of results and of dS are its caller's to choose: a first pass finds the largest
values, as `accuracy.kernel.block.fp8_graphs` says. On Hopper the results have 8 bits, too.
"""

import importlib.util
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.kinds import OneOf
from accuracy.core.quantisation import POLICIES
from accuracy.kernel.base import Abilities, Gradients, How, KernelKnobs

HOPPER_HEAD_DIM = 128
"""All that its backward has there (cudnn_frontend/node/sdpa_fp8_bwd.h)."""


@dataclass(frozen=True)
class CudnnFp8(KernelKnobs):
    """policy: by name; its emulation is `quantised` with the same one."""

    policy: Annotated[str, OneOf("cudnn_e4m3", "cudnn_e5m2")] = "cudnn_e4m3"

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32, which are cast to 8 bits; head_dim 128 on Hopper, to 128 in multiples of 16
        later."""
        if device != "cuda":
            return Abilities(missing="needs a GPU with FP8 tensor cores, here is a CPU; use kernel=quantised")
        major = torch.cuda.get_device_capability()[0]
        if major < 9:
            return Abilities(missing=f"needs compute capability 9 or later, this GPU has {major}; use kernel=quantised")
        missing = (
            "" if importlib.util.find_spec("cudnn") else "needs cuDNN's frontend; pip install nvidia-cudnn-frontend"
        )
        return Abilities(
            dtypes=("bfloat16", "float16", "float32"), partial_dtypes=("float32",), deterministic=False,
            head_dim_min=HOPPER_HEAD_DIM if major == 9 else 16, head_dim_max=128, head_dim_multiple=16, missing=missing,
        )  # fmt: skip

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        from accuracy.kernel.block import fp8_graphs

        rows = q.shape[1]
        (q,) = _square(how, k, q)
        out, lse = fp8_graphs.forward(q, k, v, POLICIES[self.policy], how.scale, how.causal)
        return out[:, -rows:], lse[..., -rows:].contiguous()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        from accuracy.kernel.block import fp8_graphs

        rows = q.shape[1]
        dout, q, out = _square(how, k, dout, q, out)
        lse = F.pad(lse, (q.shape[1] - rows, 0))
        dq, dk, dv = fp8_graphs.backward(dout, q, k, v, out, lse, POLICIES[self.policy], how.scale, how.causal)
        return dq[:, -rows:], dk, dv


def _square(how: How, k: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (B, Sq, H, D) with rows of zeros in front, as many as keys, where the mask is causal: it is aligned at
    the top left."""
    missing = k.shape[1] - tensors[0].shape[1] if how.causal else 0
    return tuple(F.pad(x, (0, 0, 0, 0, missing, 0)) if missing else x for x in tensors)


KERNEL = CudnnFp8
