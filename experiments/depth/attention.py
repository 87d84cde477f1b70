"""Attention for a block, known to autograd: a variant over simulated ranks, or exact. What a schedule's forward saved
for each rank waits with autograd for its backward, as in training. Shapes: q, out, dout (B, S, H, D), k, v (B, S, Hk,
D)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.inputs.drawing import Inputs
from accuracy.kernel.base import Kernel
from accuracy.measurement.observe import reference_of
from accuracy.runtime.sharding import cut, join
from accuracy.simulate import program
from accuracy.simulate.program import Work
from accuracy.world.base import Results, Tensors

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v -> out, known to autograd."""


@dataclass(frozen=True)
class Ranks:
    """A case's variant, block for block, over all its ranks in this process. batched: see `Work`."""

    case: Case
    kernel: Kernel
    batched: bool = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[Results]]:
        """out, and for the backward: out, lse and what else the schedule keeps, of each rank."""
        saved = program.forward(self._work(q, k, v))
        return self._joined(saved, 0), saved

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: list[Results]) -> Tensors:
        """dq, dk, dv. Raises ValueError where the variant gives none."""
        found = program.backward(self._work(q, k, v, dout), saved)
        if any(gradient is None for each in found for gradient in each):
            raise ValueError(f"variant {self.case.variant.name} gives no gradients")
        return tuple(self._joined(found, index) for index in range(3))

    def _work(self, *whole: Tensor) -> Work:
        layout = self.case.variant.sharding, self.case.world_size
        shards = list(zip(*(cut(x, *layout) for x in whole), strict=True))
        return Work(self.case, self.kernel, shards, batched=self.batched)

    def _joined(self, results: list[Results], index: int) -> Tensor:
        return join(torch.stack([each[index] for each in results]), self.case.variant.sharding)  # type: ignore[misc]


@dataclass(frozen=True)
class Exact:
    """The reference on float64 copies of what comes in, its results rounded once to the dtype of what came in."""

    case: Case

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None]:
        """out; the reference knows out and gradients together only, here for dout = 0."""
        return self._reference(q, k, v, torch.zeros_like(q)).out.to(q.dtype), None

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: None) -> Tensors:
        """dq, dk, dv from the unrounded out."""
        reference = self._reference(q, k, v, dout)
        return reference.dq.to(q.dtype), reference.dk.to(k.dtype), reference.dv.to(v.dtype)

    def _reference(self, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Any:
        return reference_of(self.case.problem, Inputs(q, k, v, dout))


Halves = Ranks | Exact
"""Forward and backward of attention, apart."""


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, halves: Halves, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, saved = halves.forward(q, k, v)
        context.save_for_backward(q, k, v)
        context.halves, context.saved = halves, saved
        return out

    @staticmethod
    def backward(context: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        return None, *context.halves.backward(dout.contiguous(), *context.saved_tensors, context.saved)


def known_to_autograd(halves: Halves) -> Attention:
    """Return a block's attention."""
    return partial(_Function.apply, halves)
