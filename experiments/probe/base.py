"""What a question is given, and what it gives back.

A subject is a kernel on a device in one dtype. Every question uses a head_dim of 64 and, unless it asks about the
scale, a scale of 1/8 = 1 / sqrt(64): products with it are exact, and a kernel that ignores it is caught in one place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import Kernel

DIM = 64
SCALE = 0.125
TENSORS = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Answer:
    """text: in a few words, equal for kernels that do the same; details: numbers behind it, for JSON."""

    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A kernel to be asked. dtype: of its inputs, by name."""

    kernel: Kernel
    dtype: str
    device: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the inputs."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def unit(self) -> float:
        """Unit roundoff of the inputs' dtype."""
        return FORMATS[self.dtype].unit_roundoff

    def given(self, values: Tensor) -> Tensor:
        """Values as an input: in the dtype, on the device."""
        return values.to(self.torch_dtype).to(self.device)

    def zeros(self, length: int, heads: int = 1, batch: int = 1) -> Tensor:
        """(B, S, H, 64) float64 on the CPU, to be filled and `given`."""
        return torch.zeros(batch, length, heads, DIM, dtype=torch.float64)

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        """N(0, 1) inputs, the same in every run."""
        generator = torch.Generator().manual_seed(seed)
        return self.given(torch.randn(*shape, dtype=torch.float64, generator=generator))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float = SCALE
    ) -> tuple[Tensor, Tensor]:
        """out and lse as the kernel returns them."""
        return self.kernel.forward(q, k, v, scale=scale, causal=causal, out_dtype=self.torch_dtype)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *,
        causal: bool = False, scale: float = SCALE,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """dq, dk, dv for any out and lse: the questions choose them to isolate a sum."""
        dtype = self.torch_dtype
        return self.kernel.backward(dout, q, k, v, out, lse, scale=scale, causal=causal, gradient_dtype=dtype)

    def both(
        self, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, causal: bool = False, scale: float = SCALE
    ) -> dict[str, Tensor]:
        """out, lse, dq, dk, dv by name."""
        how = {"causal": causal, "scale": scale}
        out, lse = self.forward(q, k, v, **how)  # type: ignore[arg-type]
        return dict(zip(TENSORS, (out, lse, *self.backward(dout, q, k, v, out, lse, **how)), strict=True))  # type: ignore[arg-type]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits: NaN equals NaN, 0 does not equal -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))
