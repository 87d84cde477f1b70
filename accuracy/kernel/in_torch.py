"""The kernels inside torch: the operators behind `scaled_dot_product_attention`, called one by one (`PARTS`)."""

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.kernel.base import (
    ALL_DTYPES,
    FLASH,
    NEEDS_CUDA,
    Abilities,
    Gradients,
    How,
    Kernel,
    gradients_by_autograd,
    square,
)
from accuracy.kernel.block import flash_fold, heads
from accuracy.kernel.block.sight import Sight, lse_beside
from accuracy.runtime import arithmetic, given_mask

aten = torch.ops.aten
FULL, BOTTOM_RIGHT = 0, 2  # torch's CustomMaskType; 1 is causal aligned at the top left
LSE_MULTIPLE = 32  # rows to which the memory-efficient kernel pads lse, with +inf
HEAD_DIMS = (256, 192, 128, 64)  # largest ones that cuDNN may take


@dataclass(frozen=True)
class TorchFlash(Kernel):
    """The flash kernels: on the CPU for every dtype, on CUDA for the 16-bit ones; both give lse.

    The CPU's aligns causal masks at the top left: where Sq != Sk it gets the bottom-right mask as a tensor instead.
    deterministic: dq summed in a fixed order on CUDA (the CPU kernel always is deterministic).
    """

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """CPU: every dtype and head dim. CUDA: bfloat16 and float16, head_dim to 256 in multiples of 8."""
        if device == "cpu":
            return Abilities(dtypes=ALL_DTYPES, features=("window", "attn_mask"), short_sums=True)
        return replace(FLASH, deterministic=self.deterministic, features=("window",))

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """On the CPU, a mask other than the operator's own is a tensor: a quarter of a score for each pair."""
        plain = problem.window is None and problem.attn_mask is None
        own = device != "cpu" or (plain and (problem.seqlen_q is None or not problem.causal))
        return super().scores_at_once(problem, device) + (0 if own else problem.queries * problem.seqlen // 4)

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `flash_fold.foldable`."""
        return flash_fold.foldable(way, calls, q, k)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        if q.is_cuda:
            out, lse, *_ = aten._flash_attention_forward(
                q, k, v, None, None, q.shape[1], k.shape[1], 0.0, how.causal, False, scale=how.scale, **_sides(how)
            )
            return out, lse
        own, mask = _masks(q, k, how)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            *heads.first(q, k, v), 0.0, own, attn_mask=mask, scale=how.scale
        )
        return out.transpose(1, 2), lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        if q.is_cuda:
            seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
            with arithmetic.deterministic(self.deterministic):  # which the operator reads, but for warn-only
                gradients: Gradients = aten._flash_attention_backward(
                    dout, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1],
                    0.0, how.causal, seed, seed[:0], scale=how.scale, **_sides(how),
                )  # fmt: skip
            return gradients
        own, mask = _masks(q, k, how)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *heads.first(dout, q, k, v, out), lse, 0.0, own, attn_mask=mask, scale=how.scale
        )
        return heads.first(*gradients)


def _sides(how: How) -> dict[str, int]:
    """-1: no limit. The operator reads a window only where one is given."""
    if how.window is None:
        return {}
    left, right = (-1 if side is None else side for side in how.window)
    return {"window_size_left": left, "window_size_right": right}


def _masks(q: Tensor, k: Tensor, how: How) -> tuple[bool, Tensor | None]:
    """Whether the operator masks by itself, and the mask that it is given: its own causal one is aligned top left."""
    rows, keys = q.shape[1], k.shape[1]
    if how.mask is not None:
        mask, hidden = given_mask.added(how.mask, q.dtype), how.sight(q, k).bias(q.dtype, q.device)
        return False, mask if hidden is None else mask + hidden
    if how.window is None and (rows == keys or not how.causal):
        return how.causal, None
    width = 1 << (keys - 1).bit_length()  # few masks are kept: that of fewer keys is the right part of a wider one
    bias = _bias(replace(how.sight(q, k), keys=width), q.dtype)
    return False, None if bias is None else bias[..., width - keys :]


@lru_cache(maxsize=16)
def _bias(sight: Sight, dtype: torch.dtype) -> Tensor | None:
    """0 where a row sees a key, -inf elsewhere: (1, 1, Sq, Sk); None: all see all."""
    bias = sight.bias(dtype, torch.device("cpu"))
    return None if bias is None else bias[None, None]


@dataclass(frozen=True)
class TorchEfficient(Kernel):
    """The memory-efficient kernel (cutlass, from xformers): the only fused one on CUDA that takes float32.

    No TF32 switch reaches it: from compute capability 8.0 on, float32 products are always three products in TF32, which
    keeps about float32's accuracy (cutlass' OpMultiplyAddFastF32; torch, mem_eff_attention/gemm_kernel_utils.h). It
    knows no GQA: the gradients of copied heads, each rounded to the inputs' dtype by the kernel, are summed in float32.
    deterministic: keys are not split over blocks whose sums of dq are added as they come (torch's default).
    """

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


@cache
def _takes(head_dim: int) -> bool:
    """Return whether torch lets cuDNN compute attention of this head dim, gradients included."""
    x = torch.zeros(1, 1, 128, head_dim, dtype=torch.float16, device="cuda", requires_grad=True)
    params = torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, True, False)
    return bool(torch.backends.cuda.can_use_cudnn_attention(params, False))


@dataclass(frozen=True)
class TorchCudnn(Kernel):
    """cuDNN's attention: CUDA, 16-bit; dq is summed by atomic adds, and torch offers no other.

    Its causal mask is aligned at the top left: see `accuracy.kernel.base.square`.
    """

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


@dataclass(frozen=True)
class TorchMath(Kernel):
    """The unfused form, which `scaled_dot_product_attention` falls back on: any dtype, CPU and CUDA.

    It scales q and k each by the root of the scale. Its backward is autograd's. It returns no lse: lse is computed
    beside it, from the same scaled q and k in the accumulation dtype, and says nothing about the kernel.
    reduced_sums: 16-bit inputs are computed in 16 bits (torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, on
    the CPU too); tf32: products of float32 in TF32 (CUDA).
    """

    reduced_sums: bool = False
    tf32: bool = False

    def abilities(self, device: str) -> Abilities:
        """Every dtype and head dim; TF32 on CUDA only."""
        missing = self.without_tf32("torch_math", device)
        return Abilities(dtypes=ALL_DTYPES, features=("window", "head_dim_v"), missing=missing)

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """Count all scores."""
        return problem.pairs

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        mask = how.sight(q, k).bias(q.dtype, q.device)  # the operator would add booleans as numbers
        with arithmetic.switched(reduced_attention_sums=self.reduced_sums, tf32_products=self.tf32):
            out, _ = aten._scaled_dot_product_attention_math(
                *heads.first(q, k, v), mask, 0.0, False, None, scale=how.scale, enable_gqa=q.shape[2] != k.shape[2]
            )
            return out.transpose(1, 2), lse_beside(q, k, how.scale, mask)

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        with arithmetic.switched(reduced_attention_sums=self.reduced_sums, tf32_products=self.tf32):
            return gradients_by_autograd(partial(self._forward, how=how), dout, q, k, v, out, lse)


PARTS = {
    "torch_flash": SimpleNamespace(KERNEL=TorchFlash),
    "torch_efficient": SimpleNamespace(KERNEL=TorchEfficient),
    "torch_cudnn": SimpleNamespace(KERNEL=TorchCudnn),
    "torch_math": SimpleNamespace(KERNEL=TorchMath),
}
