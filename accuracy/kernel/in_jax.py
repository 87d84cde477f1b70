"""JAX's own attention, and torch tensors to JAX and back through DLPack, without a copy where memory allows it.

JAX is an optional extra. Products of float32 are in float32 inside `exactly` only: the process's own JAX settings are
left alone. JAX takes GPU memory as it needs it, not most of it at its start.
"""

import importlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.dtype import OneOf
from accuracy.kernel.base import Abilities, Gradients, How, Kernel, package_missing
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import lse_beside

TILE = 128  # Pallas' default blocks divide it
PLACE = "jax.experimental.pallas.ops.gpu.attention"


def missing(device: str) -> str:
    """Why JAX cannot be used on a device, or empty."""
    missing = package_missing("jax", "jax; pip install 'attention-accuracy[jax]'")
    if not missing and device == "cuda":
        try:
            load().devices("gpu")
        except RuntimeError:
            return "needs a jax with CUDA; pip install 'jax[cuda13]'"
    return missing


def load() -> Any:
    """The module jax."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return jax


@contextmanager
def exactly() -> Iterator[None]:
    """Inside, products of float32 are computed without TF32."""
    with load().default_matmul_precision("highest"):
        yield


def to_jax(*tensors: Tensor) -> tuple[Any, ...]:
    """Return the tensors as JAX arrays on the same device."""
    return tuple(load().dlpack.from_dlpack(x.detach().contiguous()) for x in tensors)


def to_torch(*arrays: Any) -> tuple[Tensor, ...]:
    """Return the arrays as torch tensors."""
    return tuple(torch.from_dlpack(x) for x in load().block_until_ready(arrays))


@dataclass(frozen=True)
class JaxNn(Kernel):
    """`jax.nn.dot_product_attention`: XLA's fused products, or cuDNN's kernel. CPU and CUDA.

    XLA's lse comes in the inputs' dtype: where that has 16 bits lse is computed beside it in float32, and says nothing
    about the kernel. The backward knows no out and lse but its own, and gives no gradient of lse. With
    w = exp(block lse - lse) and r = w rowsum(dout (block_out - out)), a block's gradients are those for w dout, plus
    scale r (P k) for dq and scale P^T (r q) for dk, which are the out and the dv of the same function with k for v.
    implementation: xla, or cudnn (CUDA, 16 bit).
    """

    implementation: Annotated[str, OneOf("xla", "cudnn")] = "xla"

    def abilities(self, device: str) -> Abilities:
        """xla: float32 (it knows no softmax in float64) and 16 bit, every head dim; cudnn: 16 bit on CUDA, head_dim to
        128 in multiples of 8."""
        reason = missing(device)
        if self.implementation == "xla":
            return Abilities(("bfloat16", "float16", "float32"), features=("window",), missing=reason)
        if device != "cuda":
            reason = "has no cudnn on the CPU; set kernel.jax_nn.implementation=xla"
        return Abilities(
            ("bfloat16", "float16"), head_dim_max=128, head_dim_multiple=8, deterministic=False, missing=reason
        )

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """XLA keeps all scores."""
        return problem.pairs if self.implementation == "xla" else super().scores_at_once(problem, device)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        mask, words = self._mask(q, k, how), self._how(how, q, k)
        with exactly():
            out, lse = to_torch(*_compiled_nn(False)(*to_jax(q, k, v), mask, **words))
        if lse.dtype == torch.float32:
            return out, lse.transpose(1, 2)
        return out, lse_beside(q, k, how.scale, how.sight(q, k).bias(torch.float32, q.device))

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        mask, words = self._mask(q, k, how), self._how(how, q, k)
        block_out, block_lse = self._forward(q, k, v, how)
        share = torch.exp(block_lse - lse).transpose(1, 2).unsqueeze(-1)
        rest = (dout * share * (block_out.to(lse.dtype) - out)).sum(-1, keepdim=True)
        with exactly():
            arrays = to_jax(q, k, v, (dout * share).to(q.dtype))
            dq, dk, dv = to_torch(*_compiled_nn(True)(*arrays, mask, **words))
            if not bool(rest.any()):  # the block is all that its rows see
                return dq, dk, dv
            arrays = to_jax(q, k, k, (rest * q).to(q.dtype))
            of_keys, _ = to_torch(*_compiled_nn(False)(*arrays[:3], mask, **words))
            _, _, of_queries = to_torch(*_compiled_nn(True)(*arrays, mask, **words))
        return dq + how.scale * rest * of_keys, dk + how.scale * of_queries.to(lse.dtype), dv

    def _how(self, how: How, q: Tensor, k: Tensor) -> dict[str, Any]:
        square = how.causal and q.shape[1] == k.shape[1]
        return {"scale": how.scale, "is_causal": square, "implementation": self.implementation}

    def _mask(self, q: Tensor, k: Tensor, how: How) -> Any:
        """Return a mask that is no plain causal one as booleans (1, 1, Sq, Sk), aligned at the bottom right."""
        if how.window is None and (not how.causal or q.shape[1] == k.shape[1]):
            return None
        hidden = how.sight(q, k).hidden(slice(0, q.shape[1]), slice(0, k.shape[1]), q.device)
        return None if hidden is None else to_jax(~hidden[None, None])[0]


@cache
def _compiled_nn(backward: bool) -> Any:
    jax = load()

    def forward(q: Any, k: Any, v: Any, mask: Any, **how: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, mask=mask, return_residual=True, **how)

    def gradients(q: Any, k: Any, v: Any, dout: Any, mask: Any, **how: Any) -> Any:
        attend = partial(jax.nn.dot_product_attention, mask=mask, **how)
        return jax.vjp(attend, q, k, v)[1](dout)

    return jax.jit(gradients if backward else forward, static_argnames=("scale", "is_causal", "implementation"))


@dataclass(frozen=True)
class JaxPallas(Kernel):
    """Flash attention for GPUs as published, `jax.experimental.pallas.ops.gpu.attention.mha`, with its default block
    sizes: Triton code written in Pallas.

    Its backward computes dq and dk, dv apart, each with the scores again (jax-triton #177). It wants as many queries as
    keys, in whole tiles: queries are padded in front, both behind, and segments keep the padding apart; more queries
    than keys are computed piece by piece. On the CPU Pallas' interpreter runs the same program.
    """

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16, head_dim from 16 to 128."""
        return Abilities(("bfloat16", "float16"), head_dim_min=16, head_dim_max=128, missing=missing(device))

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        outs, lses = [], []
        for rows in _pieces(q, k):
            padded = _padded(q[:, rows], k.shape[1]), *(_behind(x) for x in (k, v))
            with exactly():
                out, bits = to_torch(*_compiled_pallas(False)(*to_jax(*padded), _segments(q, k), **_how_pallas(how, q)))
            outs.append(_unpadded(out, q[:, rows], k))
            lses.append(_unpadded(bits.transpose(1, 2), q[:, rows], k).transpose(1, 2) * math.log(2))
        return torch.cat(outs, 1), torch.cat(lses, 2)

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        heads_kv = k.shape[2]
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        bits = (lse / math.log(2)).float().transpose(1, 2)
        dqs, dk, dv = [], torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
        for rows in _pieces(q, k):
            rowwise = (_padded(x[:, rows], k.shape[1]) for x in (q, out.to(q.dtype), dout, bits))
            query, outs, douts, lses = rowwise
            operands = query, _behind(k), _behind(v), outs, lses.transpose(1, 2), douts
            with exactly():
                found = to_torch(*_compiled_pallas(True)(*to_jax(*operands), _segments(q, k), **_how_pallas(how, q)))
            dqs.append(_unpadded(found[0], q[:, rows], k))
            dk += found[1][:, : k.shape[1]]
            dv += found[2][:, : k.shape[1]]
        summed = (heads.summed(x, heads_kv, torch.float32) for x in (dk, dv))
        return torch.cat(dqs, 1), *summed


def _how_pallas(how: How, q: Tensor) -> dict[str, Any]:
    return {"scale": how.scale, "causal": how.causal, "interpret": not q.is_cuda}


def _pieces(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Rows, at most as many as there are keys."""
    return (slice(row, min(row + k.shape[1], q.shape[1])) for row in range(0, q.shape[1], k.shape[1]))


def _padded(x: Tensor, keys: int) -> Tensor:
    """Rows (B, Sq, ...) behind zeros, so that the last row stands at the last key, and zeros to whole tiles."""
    return _behind(_pad(x, keys - x.shape[1], 0))


def _behind(x: Tensor) -> Tensor:
    return _pad(x, 0, -x.shape[1] % TILE)


def _pad(x: Tensor, before: int, after: int) -> Tensor:
    return F.pad(x, (*[0, 0] * (x.dim() - 2), before, after))


def _unpadded(x: Tensor, rows: Tensor, k: Tensor) -> Tensor:
    return x[:, k.shape[1] - rows.shape[1] : k.shape[1]]


def _segments(q: Tensor, k: Tensor) -> Any:
    """0 of keys, 1 of padding (B, S); None where there is none behind."""
    keys = k.shape[1]
    if keys % TILE == 0:
        return None
    padding = torch.arange(keys + -keys % TILE, device=q.device) >= keys
    return to_jax(padding.int().expand(q.shape[0], -1))[0]


@cache
def _compiled_pallas(backward: bool) -> Any:
    jax = load()
    pallas = importlib.import_module(PLACE)
    sizes = pallas.BlockSizes.get_default()

    def forward(q: Any, k: Any, v: Any, segments: Any, *, scale: float, causal: bool, interpret: bool) -> Any:
        return pallas.mha(
            q, k, v, segments, sm_scale=scale, causal=causal, block_sizes=sizes, interpret=interpret,
            return_residuals=True,
        )  # fmt: skip

    def gradients(
        q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, segments: Any, *,
        scale: float, causal: bool, interpret: bool,
    ) -> Any:  # fmt: skip
        residuals = q, k, v, segments, out, lse
        return pallas._mha_backward(
            scale, causal, sizes, "triton", None, 2, None, interpret, False, False, residuals, dout
        )[:3]

    return jax.jit(gradients if backward else forward, static_argnames=("scale", "causal", "interpret"))


PARTS = {"jax_nn": SimpleNamespace(KERNEL=JaxNn), "jax_pallas": SimpleNamespace(KERNEL=JaxPallas)}
