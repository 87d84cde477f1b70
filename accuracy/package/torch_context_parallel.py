"""torch's own context parallelism: its ring (a private template) over any kernel. The public path has its own file.

It is what `context_parallel` runs, with the kernel of the case in the place of torch's; `convert_to_f32` stays as
published. Head-tail load balance is zigzag sharding, none contiguous.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.kernel.block import heads
from accuracy.package import installed, substitutes

DISTRIBUTION = "torch"
PLACES = (  # newest first
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",
)
SEQUENCE_DIM = 2  # of (B, H, S, D): the only one the template works with

Result = tuple[Tensor, Tensor]

surroundings = substitutes.of


def unsupported(case: Case) -> str | None:
    """A torch without it; a full mask where work is balanced."""
    if _module() is None:
        return f"torch {torch.__version__} has no context parallelism that is known here; use torch>=2.8"
    if not case.problem.causal and installed.called(case).endswith("_balanced"):
        return installed.UNBALANCED
    return None


@cache
def _module() -> ModuleType | None:
    for place in PLACES:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        if hasattr(module, "_templated_ring_attention"):
            return module
    return None


def _attend(
    rotation: str, balance: bool, q: Tensor, k: Tensor, v: Tensor, *,
    causal: bool, softmax_scale: float, group: dist.ProcessGroup,
) -> Result:  # fmt: skip
    """Keys and values gathered once or sent on hop by hop; zigzag shards (causal) if balanced, else contiguous ones."""
    ring = _Ring(substitutes.present(), softmax_scale, causal, group, rotation, balance)
    out, lse = _TemplatedRing.apply(*heads.first(q, k, v), ring)
    return out.transpose(1, 2), lse


allgather, alltoall = partial(_attend, "ALL_GATHER", False), partial(_attend, "ALL_TO_ALL", False)
allgather_balanced, alltoall_balanced = partial(_attend, "ALL_GATHER", True), partial(_attend, "ALL_TO_ALL", True)


@dataclass(frozen=True)
class _Ring:
    """The template with one kernel; tensors in its layout (B, H, S, D), lse (B, H, S)."""

    kernel: Kernel
    scale: float
    causal: bool
    group: dist.ProcessGroup
    rotation: str
    balance: bool

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Result:
        tensors = heads.first(query, key, value)
        out, lse = self.kernel.forward(*tensors, scale=self.scale, causal=is_causal, out_dtype=query.dtype)
        return out.transpose(1, 2), lse

    def backward(
        self, *, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool,
        grad_out: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        dout, q, k, v, out = heads.first(grad_out, query, key, value, out)
        gradients = self.kernel.backward(
            dout, q, k, v, out, logsumexp, scale=self.scale, causal=is_causal, gradient_dtype=query.dtype
        )
        return heads.first(*gradients)

    @contextmanager
    def template(self) -> Iterator[Any]:
        module = _module()
        assert module is not None  # unsupported() has seen to it
        method = module._RotateMethod[self.rotation]
        with substitutes.names(module._cp_options, rotate_method=method, enable_load_balance=self.balance):
            yield module


class _TemplatedRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Result:
        with ring.template() as module:
            out, lse = module._templated_ring_attention(
                ring.group, SEQUENCE_DIM, ring.forward, q, k, v, is_causal=ring.causal
            )
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ring: _Ring = ctx.ring
        with ring.template() as module:
            found = module._templated_ring_attention_backward(
                ring.group, SEQUENCE_DIM, ring.backward, gradients[0], "grad_out", *ctx.saved_tensors, ring.causal
            )
        return *found, None
