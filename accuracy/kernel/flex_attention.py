"""torch's flex_attention, compiled to Triton kernels on CUDA, each shape for itself; without a backward on the CPU.

A shape that cannot be compiled is an error: torch would fall back on an unfused form that rounds elsewhere. So does its
kernel for fewer than 128 queries, which is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from accuracy.core.case import Problem
from accuracy.kernel.base import FEATURES, Abilities, Gradients, How, Kernel, gradients_by_autograd
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import Sight

COMPILED_SHAPES = 4096  # torch's own limit of 8 is for shapes that come by accident


@dataclass(frozen=True)
class FlexAttention(Kernel):
    """tf32: products of float32 in TF32; false: in float32. Compiled on CUDA; on the CPU the unfused form."""

    tf32: bool = False

    def abilities(self, device: str) -> Abilities:
        """CUDA: float32, bfloat16, float16, head_dim from 16 to 256."""
        if device != "cuda":
            return Abilities(missing="has no backward on the CPU; use kernel=torch_math or kernel=eager")
        dtypes = ("float32", "bfloat16", "float16")
        return Abilities(dtypes=dtypes, head_dim_min=16, head_dim_max=256, features=FEATURES)

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """The mask tensor and its sums take 9 bytes a pair of all heads, at most a quarter of what a score counts."""
        return super().scores_at_once(problem, device) + problem.queries * problem.seqlen // 4

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        if q.is_cuda:  # with a graph that is thrown away: one compilation serves forward and backward
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out, lse = self._attend(q, k, v, how)
        return out.detach(), lse.detach()

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        return gradients_by_autograd(partial(self._attend, how=how), dout, q, k, v, out, lse)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        sight = how.sight(q, k)
        function: Any = compiled() if q.is_cuda else flex.flex_attention
        precision = "'tf32'" if self.tf32 else "'ieee'"
        out, aux = function(
            *heads.first(q, k, v),
            block_mask=None if sight.left is sight.right is None else _mask(sight, str(q.device)),
            score_mod=None if how.softcap is None else _cap(how.softcap),
            scale=how.scale,
            enable_gqa=q.shape[2] != k.shape[2],
            kernel_options={"FORCE_USE_FLEX_ATTENTION": True, "FLOAT32_PRECISION": precision},
            return_aux=flex.AuxRequest(lse=True),
        )
        return out.transpose(1, 2), aux.lse


@cache
def compiled() -> Callable[..., Any]:
    """flex_attention as one kernel, or an error; for as many shapes as come."""
    function: Any = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
    limits = {"recompile_limit": COMPILED_SHAPES, "accumulated_recompile_limit": COMPILED_SHAPES}

    def call(*tensors: Tensor, **options: Any) -> Any:
        with torch._dynamo.config.patch(limits):
            return function(*tensors, **options)

    return call


@lru_cache(maxsize=16)
def _mask(sight: Sight, device: str) -> Any:
    """Windows and causal masks, aligned at the bottom right."""
    offset = sight.keys - sight.rows
    left = sight.keys if sight.left is None else sight.left
    right = sight.rows if sight.right is None else sight.right

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key <= row + offset + right) & (key >= row + offset - left)

    return flex.create_block_mask(seen, None, None, sight.rows, sight.keys, device=device)


@cache
def _cap(softcap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


KERNEL = FlexAttention
