"""The flash kernels inside torch: on the CPU for every dtype, on CUDA for the 16-bit ones; both give lse.

The low-level operators behind `scaled_dot_product_attention`, so that the lse comes back and the backward can be
called with the lse of all keys. The CPU operator aligns causal masks at the top left: where Sq != Sk it gets the
bottom-right mask as a tensor instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS
from accuracy.core.masks import Window
from accuracy.kernel.base import ALL_DTYPES, Abilities, Kernel, KernelKnobs
from accuracy.kernel.block import flash_fold, heads
from accuracy.kernel.block.sight import Sight

aten = torch.ops.aten


@dataclass(frozen=True)
class TorchFlashCPU:
    """See `accuracy.kernel.base.Kernel`."""

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `accuracy.kernel.base.FoldingKernel`. The backward works through the heads of the batch, each by itself,
        threads beside each other; a single head's products would have all threads to themselves. The forward packs keys
        where a thread has many heads (`need_pack` of ATen/native/cpu/FlashAttentionKernel.cpp)."""
        alone = q.shape[0] * k.shape[2] == 1
        return 1 if way == "forward" or alone else calls

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype,
        window: Window | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See `Kernel.forward`."""
        own, mask = _masks(q, k, causal, window)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            *heads.first(q, k, v), 0.0, own, attn_mask=mask, scale=scale
        )
        return out.transpose(1, 2).to(out_dtype), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype, window: Window | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Kernel.backward`."""
        own, mask = _masks(q, k, causal, window)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *heads.first(dout, q, k, v, out), lse, 0.0, own, attn_mask=mask, scale=scale
        )
        dq, dk, dv = (gradient.transpose(1, 2).to(gradient_dtype) for gradient in gradients)
        return dq, dk, dv


@dataclass(frozen=True)
class TorchFlashCUDA:
    """See `accuracy.kernel.base.Kernel`."""

    deterministic: bool

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `accuracy.kernel.base.FoldingKernel`."""
        return flash_fold.foldable(way, calls, q, k)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype,
        window: Window | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See `Kernel.forward`."""
        out, lse, *_ = aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=scale, **_sides(window)
        )
        return out.to(out_dtype), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype, window: Window | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Kernel.backward`."""
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        with _deterministic(self.deterministic):
            gradients = aten._flash_attention_backward(
                dout, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1],
                0.0, causal, seed, seed[:0], scale=scale, **_sides(window),
            )  # fmt: skip
        dq, dk, dv = (gradient.to(gradient_dtype) for gradient in gradients)
        return dq, dk, dv


def _sides(window: Window | None) -> dict[str, int]:
    """-1: no limit. The operator reads a window only where one is given."""
    if window is None:
        return {}
    left, right = (-1 if side is None else side for side in window)
    return {"window_size_left": left, "window_size_right": right}


def _masks(q: Tensor, k: Tensor, causal: bool, window: Window | None) -> tuple[bool, Tensor | None]:
    """Whether the operator masks by itself, and the mask that it is given: its own causal one is aligned top left."""
    rows, keys = q.shape[1], k.shape[1]
    if window is None and (rows == keys or not causal):
        return causal, None
    width = _width(keys)
    left, right = window or (None, 0)
    bias = _bias(Sight(rows, width, left, right), q.dtype)
    return False, None if bias is None else bias[..., width - keys :]


def _width(keys: int) -> int:
    """Few widths, so that few masks are kept: the mask of fewer keys is the right part of a wider one."""
    return 1 << (keys - 1).bit_length()


@lru_cache(maxsize=16)
def _bias(sight: Sight, dtype: torch.dtype) -> Tensor | None:
    """0 where a row sees a key, -inf elsewhere: (1, 1, Sq, Sk); None: all see all."""
    bias = sight.bias(dtype, torch.device("cpu"))
    return None if bias is None else bias[None, None]


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """The operator reads torch's process-wide switch (not in warn-only mode); it is set for the call only."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@dataclass(frozen=True)
class TorchFlash(KernelKnobs):
    """deterministic: dq summed in a fixed order on CUDA (the CPU kernel always is deterministic)."""

    deterministic: bool = True

    def abilities(self, device: str) -> Abilities:
        """CPU: every dtype and head dim. CUDA: bfloat16 and float16, head_dim to 256 in multiples of 8."""
        if device == "cpu":
            return Abilities(dtypes=ALL_DTYPES, features=("window",))
        return Abilities(
            dtypes=("bfloat16", "float16"),
            head_dim_max=256,
            head_dim_multiple=8,
            deterministic=self.deterministic,
            features=("window",),
        )

    def build(self, device: str) -> Kernel:
        """The operator of the device."""
        return TorchFlashCPU() if device == "cpu" else TorchFlashCUDA(self.deterministic)

    def held_bytes(self, case: Case) -> int:
        """On the CPU, a mask as a tensor where the operator's own is another: booleans and two copies of 0 and -inf."""
        problem = case.problem
        if case.device != "cpu" or (problem.window is None and (problem.seqlen_q is None or not problem.causal)):
            return 0
        return problem.queries * _width(problem.seqlen) * (1 + 2 * FORMATS[case.dtype].bytes)


KERNEL = TorchFlash
