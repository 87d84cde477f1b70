"""JAX's own attention, `jax.nn.dot_product_attention`: XLA's fused products, or cuDNN's kernel. CPU and CUDA.

XLA's lse comes in the inputs' dtype: where that has 16 bits lse is computed beside it in float32, and says nothing
about the kernel. The backward knows no out and lse but its own, and gives no gradient of lse. With
w = exp(block lse - lse) and r = w rowsum(dout (block_out - out)), a block's gradients are those for w dout, plus
scale r (P k) for dq and scale P^T (r q) for dk, which are the out and the dv of the same function with k for v.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.dtype import OneOf
from accuracy.kernel.base import Abilities, Gradients, How, Kernel
from accuracy.kernel.block import in_jax
from accuracy.kernel.block.sight import lse_beside


@dataclass(frozen=True)
class JaxNn(Kernel):
    """implementation: xla, or cudnn (CUDA, 16 bit)."""

    implementation: Annotated[str, OneOf("xla", "cudnn")] = "xla"

    def abilities(self, device: str) -> Abilities:
        """xla: float32 (it knows no softmax in float64) and 16 bit, every head dim; cudnn: 16 bit on CUDA, head_dim to
        128 in multiples of 8."""
        missing = in_jax.missing(device)
        if self.implementation == "xla":
            return Abilities(("bfloat16", "float16", "float32"), features=("window",), missing=missing)
        if device != "cuda":
            missing = "has no cudnn on the CPU; set kernel.jax_nn.implementation=xla"
        return Abilities(
            ("bfloat16", "float16"), head_dim_max=128, head_dim_multiple=8, deterministic=False, missing=missing
        )

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """XLA keeps all scores."""
        return problem.pairs if self.implementation == "xla" else super().scores_at_once(problem, device)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        mask, words = self._mask(q, k, how), self._how(how, q, k)
        with in_jax.exactly():
            out, lse = in_jax.to_torch(*_compiled(False)(*in_jax.to_jax(q, k, v), mask, **words))
        if lse.dtype == torch.float32:
            return out, lse.transpose(1, 2)
        return out, lse_beside(q, k, how.scale, how.sight(q, k).bias(torch.float32, q.device))

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        mask, words = self._mask(q, k, how), self._how(how, q, k)
        block_out, block_lse = self._forward(q, k, v, how)
        share = torch.exp(block_lse - lse).transpose(1, 2).unsqueeze(-1)
        rest = (dout * share * (block_out.to(lse.dtype) - out)).sum(-1, keepdim=True)
        with in_jax.exactly():
            arrays = in_jax.to_jax(q, k, v, (dout * share).to(q.dtype))
            dq, dk, dv = in_jax.to_torch(*_compiled(True)(*arrays, mask, **words))
            if not bool(rest.any()):  # the block is all that its rows see
                return dq, dk, dv
            arrays = in_jax.to_jax(q, k, k, (rest * q).to(q.dtype))
            of_keys, _ = in_jax.to_torch(*_compiled(False)(*arrays[:3], mask, **words))
            _, _, of_queries = in_jax.to_torch(*_compiled(True)(*arrays, mask, **words))
        return dq + how.scale * rest * of_keys, dk + how.scale * of_queries.to(lse.dtype), dv

    def _how(self, how: How, q: Tensor, k: Tensor) -> dict[str, Any]:
        square = how.causal and q.shape[1] == k.shape[1]
        return {"scale": how.scale, "is_causal": square, "implementation": self.implementation}

    def _mask(self, q: Tensor, k: Tensor, how: How) -> Any:
        """Return a mask that is no plain causal one as booleans (1, 1, Sq, Sk), aligned at the bottom right."""
        if how.window is None and (not how.causal or q.shape[1] == k.shape[1]):
            return None
        hidden = how.sight(q, k).hidden(slice(0, q.shape[1]), slice(0, k.shape[1]), q.device)
        return None if hidden is None else in_jax.to_jax(~hidden[None, None])[0]


@cache
def _compiled(backward: bool) -> Any:
    jax = in_jax.load()

    def forward(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, mask=mask, return_residual=True, **how)

    def gradients(q: Any, k: Any, v: Any, dout: Any, mask: Any, **how: Any) -> Any:
        attend = partial(jax.nn.dot_product_attention, mask=mask, **how)
        return jax.vjp(attend, q, k, v)[1](dout)

    return jax.jit(gradients if backward else forward, static_argnames=("scale", "is_causal", "implementation"))


KERNEL = JaxNn
