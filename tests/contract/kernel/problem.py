"""One attention problem for a kernel: its inputs, the reference, and errors, also in units of the last place."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.kernel.base import Kernel
from accuracy.reference.float64 import attention

NAMES = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Problem:
    """Causal masks are aligned at the bottom right; with more queries than keys the first rows see none."""

    queries: int = 70
    keys: int = 133
    heads: int = 2
    heads_kv: int = 1
    dim: int = 40
    causal: bool = True
    dtype: torch.dtype = torch.float32
    scale: float = 0.3
    batch: int = 1

    def draw(self, device: str) -> list[Tensor]:
        """q, k, v, dout."""
        generator = torch.Generator().manual_seed(5)
        sizes = [(self.queries, self.heads), *2 * [(self.keys, self.heads_kv)], (self.queries, self.heads)]
        return [
            torch.randn(self.batch, length, heads, self.dim, generator=generator).to(self.dtype).to(device)
            for length, heads in sizes
        ]

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, seen: Tensor | None = None, **how: Any
    ) -> list[Tensor]:
        """out, lse, dq, dk, dv in float64; seen: another mask than this problem's, (queries, keys)."""
        if seen is None and self.causal:
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        mask = None if seen is None else seen[None, None].to(q.device)
        found = attention(q, k, v, dout, scale=self.scale, causal=False, mask=mask, **how)
        return [found.out, found.lse, found.dq, found.dk, found.dv]


def results(
    kernel: Kernel, problem: Problem, tensors: Sequence[Tensor], stored: torch.dtype | None = None
) -> list[Tensor]:
    """The kernel's out, lse, dq, dk, dv in the dtype `stored`; the backward takes out in the inputs' dtype."""
    q, k, v, dout = tensors
    how, stored = {"scale": problem.scale, "causal": problem.causal}, stored or problem.dtype
    out, lse = kernel.forward(q, k, v, **how, out_dtype=stored)
    return [out, lse, *kernel.backward(dout, q, k, v, out.to(q.dtype), lse, **how, gradient_dtype=stored)]


def relative(found: Sequence[Tensor], reference: Sequence[Tensor]) -> dict[str, float]:
    """Frobenius, by name; the shorter of the two ends it."""
    pairs = zip(NAMES, found, reference, strict=False)
    return {name: float((x.double() - expected).norm() / expected.norm()) for name, x, expected in pairs}


@cache
def posed(problem: Problem) -> tuple[list[Tensor], list[Tensor]]:
    """q, k, v, dout on a CPU, to be read alone, and the reference."""
    tensors = problem.draw("cpu")
    return tensors, problem.reference(*tensors)


def measured(kernel: Kernel, problem: Problem, stored: torch.dtype | None = None) -> dict[str, float]:
    tensors, reference = posed(problem)
    return relative(results(kernel, problem, tensors, stored), reference)


def errors(
    found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, units: int = 128, lse: int = 128,
    low: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """Relative Frobenius error of each tensor over what is allowed: below 1 is right. Infinities must agree.

    Allowed are units of the stored dtype's u, 16 in 16 bits: the floor is 0.4 u, P and out are rounded once each, and
    scores are summed in float32. Of sums in the dtype itself `units`, of lse `lse`; `low` at least.
    Where dq and dk vanish (one key: its weight is 1 whatever the score) they are held against the size of dv.
    """
    ratios, last = {}, expected[-1].masked_fill(expected[-1].isinf(), 0.0).norm()
    for name, x, exact in zip(NAMES, found, expected, strict=False):
        stored = accumulation_dtype(str(dtype)[6:]) if name == "lse" else str(dtype)[6:]
        assert (x.shape, str(x.dtype)[6:]) == (exact.shape, stored), name
        allowed = lse if name == "lse" else 16 if FORMATS[stored].bytes == 2 else units
        same = torch.isinf(exact) & (x == exact)
        difference, size = (x.double() - exact).masked_fill(same, 0.0), exact.masked_fill(same, 0.0).norm()
        size = last if size < 1e-12 * last else size
        ratios[name] = float(difference.norm() / size) / max(low, allowed * FORMATS[stored].unit_roundoff)
    return ratios


def within(found: dict[str, float]) -> bool:
    """Whether all errors are allowed; NaN is not."""
    return all(error < 1 for error in found.values())
