"""Kernels of packages in 8 bits that return out alone: no lse, and no backward."""

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from torch import Tensor

from accuracy.core.dtype import OneOf
from accuracy.core.quantisation import POLICIES
from accuracy.kernel.base import Abilities, How, Kernel, package_missing, square
from accuracy.kernel.lowp.operand import Operand, cast
from accuracy.kernel.triton.available import InTriton, interpreting

CAPABILITY = 9
"""The compute capability that FlashInfer's backend fa3 needs."""


class _OnCuda(Tensor):
    """A CPU tensor of Triton's interpreter: the package asks where a tensor is."""

    is_cuda = property(lambda self: True)


@dataclass(frozen=True)
class Sage(InTriton):
    """SageAttention 1 (arXiv 2410.02367; the package sageattention 1.0.6): int8 q and k by blocks, P and v in float16.

    The package subtracts the mean key from the caller's k in place: it is given a copy. Its emulation is policy `sage`
    of `quantised`, with a key_chunk of 64. smooth_k: the mean key is taken off.
    """

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


@dataclass(frozen=True)
class FlashinferFp8(Kernel):
    """FlashInfer's FP8 attention (`single_prefill_with_kv_cache`, backend fa3): a scale a head, Hopper alone.

    As FlashInfer 0.6.18's source has it (`include/flashinfer/attention/hopper/variants.cuh`, `StandardFP8Attention`): P
    is multiplied by its format's largest value before the cast. The package compiles a kernel at its first use, by
    nvcc. Its emulation, `quantised` with the same policy and tiles of 192 keys, has its errors on an H100
    (experiments/fp8_fit). policy: by name.
    """

    policy: Annotated[str, OneOf("flashinfer_e4m3", "flashinfer_e5m2")] = "flashinfer_e4m3"

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16, which are cast to 8 bits; head dims 64, 128 and 256; out alone."""
        if device != "cuda":
            return Abilities(missing="needs a Hopper GPU, here is a CPU; use kernel=quantised")
        major = torch.cuda.get_device_capability()[0]
        missing = package_missing("flashinfer", "the package flashinfer; pip install flashinfer-python")
        if major != CAPABILITY:
            missing = f"needs compute capability 9 (its backend fa3), this GPU has {major}; use kernel=quantised"
        elif not (missing or shutil.which("nvcc") or importlib.util.find_spec("flashinfer_jit_cache")):
            missing = "compiles at its first use: needs nvcc, or the package flashinfer-jit-cache"
        return Abilities(
            dtypes=("bfloat16", "float16"), head_dim_min=64, head_dim_max=256, head_dim_multiple=64, out_only=True,
            missing=missing,
        )  # fmt: skip

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Any]:
        policy = POLICIES[self.policy]
        operands = [cast(x, policy.q, policy) for x in (q, k, v)]
        return torch.stack([_item(operands, item, q.dtype, how) for item in range(len(q))]), None


def _item(operands: Sequence[Operand], item: int, dtype: torch.dtype, how: How) -> Tensor:
    """One sequence: codes (S, heads, D), a scale a head. Its causal mask is aligned at the bottom right."""
    from flashinfer import single_prefill_with_kv_cache

    codes = (x.by_token[item].contiguous() for x in operands)
    scales = (x.scales[item, :, 0] for x in operands)
    out: Tensor = single_prefill_with_kv_cache(
        *codes, *scales, o_dtype=dtype, causal=how.causal, sm_scale=how.scale, backend="fa3"
    )
    return out


PARTS = {"sage": SimpleNamespace(KERNEL=Sage), "flashinfer_fp8": SimpleNamespace(KERNEL=FlashinferFp8)}
