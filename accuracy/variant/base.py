"""What a schedule is given: one rank's world, kernel, precision policy and problem, and the few steps all share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.accumulator import Accumulator
from accuracy.carried import Carried
from accuracy.kernel.base import Kernel
from accuracy.masks import Block
from accuracy.merge import Running
from accuracy.precision import Precision
from accuracy.world.base import Tensors, World


@dataclass(frozen=True)
class Rank:
    """One rank's side of a case. dtype: the case's; options: the schedule's knobs, an instance of its `Options`."""

    world: World
    kernel: Kernel
    precision: Precision
    dtype: torch.dtype
    scale: float
    causal: bool
    sharding: str
    options: Any = None

    def place(self, place: str) -> torch.dtype:
        """The dtype that the precision policy sets for a rounding place."""
        return getattr(torch, self.precision.dtype(place, str(self.dtype).removeprefix("torch.")))

    @property
    def lse_dtype(self) -> torch.dtype:
        """In which lse is stored: float32, float64 in a float64 case."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def running(self, q: Tensor) -> Running | Carried:
        """An empty running partial for the queries q (B, S, H, D); the kernel's own state where it carries one."""
        carry = getattr(self.kernel, "carry", None)
        if carry is not None:
            return Carried(carry, q)
        return Running.empty(q, self.place("out_accumulator"), self.place("lse"), self.precision.merge)

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """An empty sum of the gradient `name` (dq, dk, dv), shaped `like` (B, S, heads, D)."""
        return Accumulator(like, self.place("dq_accumulator" if name == "dq" else "dkv_accumulator"))

    def join(self, running: Running | Carried, block: Block, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Bring a block into the running partial: by going on in the kernel, or by merging what the kernel returns."""
        if isinstance(running, Carried):
            running.add(block, k[:, block.key], v[:, block.key], self.scale)
        else:
            running.add(block, *self.attend(block, q, k, v))

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel's partial of one block: out (B, S', H, D) and lse (B, H, S')."""
        return self.kernel.forward(
            q[:, block.query], k[:, block.key], v[:, block.key],
            scale=self.scale, causal=block.causal, out_dtype=self.place("partial"),
        )  # fmt: skip

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """The kernel's dq of the block's rows and dk, dv of its keys, for out and lse over all keys."""
        return self.kernel.backward(
            dout[:, block.query], q[:, block.query], k[:, block.key], v[:, block.key],
            out[:, block.query], lse[:, :, block.query],
            scale=self.scale, causal=block.causal, gradient_dtype=self.place("gradient_partial"),
        )  # fmt: skip
