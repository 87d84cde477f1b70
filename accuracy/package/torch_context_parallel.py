"""torch's own context parallelism: its ring (a private template) over any kernel. The public path has its own file.

The template rotates keys and values (all-gather once, or all-to-all hop by hop) and balances causal work (head-tail,
which is zigzag sharding) or not (contiguous). It is what `context_parallel` runs, with the kernel of the case in the
place of torch's; `convert_to_f32` stays as published.
"""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.package import case_kernel, replaced
from accuracy.variant.base import Rank

DISTRIBUTION = "torch"
PLACES = (  # newest first
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",
)
SEQUENCE_DIM = 2  # of (B, H, S, D): the only one the template works with

Result = tuple[Tensor, Tensor]


def unsupported(case: Case) -> str | None:
    """A torch without it; a full mask where work is balanced."""
    name = str(dict(case.variant.options)["fn"]).rpartition(".")[2]
    if _module() is None:
        return f"torch {torch.__version__} has no context parallelism that is known here; use torch>=2.8"
    if not case.problem.causal and name.endswith("_balanced"):
        return "torch balances the work of causal masks only; set problem.mask=causal or use an unbalanced variant"
    return None


def surroundings(rank: Rank) -> AbstractContextManager[Any]:
    """The kernel of the case is at hand."""
    return case_kernel.of(rank)


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


def allgather_balanced(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """Keys and values gathered once, zigzag shards, causal."""
    return _attend(q, k, v, causal, softmax_scale, group, "ALL_GATHER", True)


def allgather(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """Keys and values gathered once, contiguous shards."""
    return _attend(q, k, v, causal, softmax_scale, group, "ALL_GATHER", False)


def alltoall_balanced(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """Keys and values sent on hop by hop, zigzag shards, causal."""
    return _attend(q, k, v, causal, softmax_scale, group, "ALL_TO_ALL", True)


def alltoall(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """Keys and values sent on hop by hop, contiguous shards."""
    return _attend(q, k, v, causal, softmax_scale, group, "ALL_TO_ALL", False)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, group: dist.ProcessGroup, rotation: str, balance: bool
) -> Result:
    ring = _Ring(case_kernel.present(), scale, causal, group, rotation, balance)
    out, lse = _TemplatedRing.apply(*(x.transpose(1, 2) for x in (q, k, v)), ring)
    return out.transpose(1, 2), lse


class _Ring:
    """The template with one kernel; tensors in its layout (B, H, S, D), lse (B, H, S)."""

    def __init__(
        self, kernel: Kernel, scale: float, causal: bool, group: dist.ProcessGroup, rotation: str, balance: bool
    ) -> None:
        self.kernel, self.scale, self.causal, self.group = kernel, scale, causal, group
        self.rotation, self.balance = rotation, balance

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Result:
        def op(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Result:
            out, lse = self.kernel.forward(
                *_by_token(query, key, value), scale=self.scale, causal=is_causal, out_dtype=query.dtype
            )
            return out.transpose(1, 2), lse

        with self._options() as module:
            out, lse = module._templated_ring_attention(self.group, SEQUENCE_DIM, op, q, k, v, is_causal=self.causal)
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        def op(
            *, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool,
            grad_out: Tensor,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            dout, q, k, v, out = _by_token(grad_out, query, key, value, out)
            gradients = self.kernel.backward(
                dout, q, k, v, out, logsumexp,
                scale=self.scale, causal=is_causal, gradient_dtype=query.dtype,
            )  # fmt: skip
            return _by_token(*gradients)

        with self._options() as module:
            gradients: tuple[Tensor, ...] = module._templated_ring_attention_backward(
                self.group, SEQUENCE_DIM, op, dout, "grad_out", q, k, v, out, lse, self.causal
            )
        return gradients

    @contextmanager
    def _options(self) -> Iterator[Any]:
        module = _module()
        assert module is not None  # unsupported() has seen to it
        method = module._RotateMethod[self.rotation]
        with replaced.names(module._cp_options, rotate_method=method, enable_load_balance=self.balance):
            yield module


class _TemplatedRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Result:
        out, lse = ring.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.ring.backward(gradients[0], *ctx.saved_tensors), None


def _by_token(*tensors: Tensor) -> tuple[Tensor, ...]:
    """(B, H, S, D) <-> (B, S, H, D)."""
    return tuple(x.transpose(1, 2) for x in tensors)
