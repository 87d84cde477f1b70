"""JAX's flash attention for GPUs, `jax.experimental.pallas.ops.gpu.attention.mha`: Triton code written in Pallas.

Its backward computes dq and dk, dv apart, each with the scores again (jax-triton #177). It wants as many queries as
keys, in whole tiles: queries are padded in front, both behind, and segments keep the padding apart; more queries than
keys are computed piece by piece. On the CPU Pallas' interpreter runs the same program.
"""

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.kernel.base import Abilities, Gradients, How, Kernel
from accuracy.kernel.block import heads, in_jax

TILE = 128  # its default blocks divide it
PLACE = "jax.experimental.pallas.ops.gpu.attention"


@dataclass(frozen=True)
class JaxPallas(Kernel):
    """As published, with its default block sizes."""

    def abilities(self, device: str) -> Abilities:
        """bfloat16 and float16, head_dim from 16 to 128."""
        return Abilities(("bfloat16", "float16"), head_dim_min=16, head_dim_max=128, missing=in_jax.missing(device))

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        k, v = (heads.repeated(x, q.shape[2]) for x in (k, v))
        outs, lses = [], []
        for rows in _pieces(q, k):
            padded = _padded(q[:, rows], k.shape[1]), *(_behind(x) for x in (k, v))
            with in_jax.exactly():
                out, bits = in_jax.to_torch(*_compiled(False)(*in_jax.to_jax(*padded), _segments(q, k), **_how(how, q)))
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
            with in_jax.exactly():
                found = in_jax.to_torch(*_compiled(True)(*in_jax.to_jax(*operands), _segments(q, k), **_how(how, q)))
            dqs.append(_unpadded(found[0], q[:, rows], k))
            dk += found[1][:, : k.shape[1]]
            dv += found[2][:, : k.shape[1]]
        summed = (heads.summed(x, heads_kv, torch.float32) for x in (dk, dv))
        return torch.cat(dqs, 1), *summed


def _how(how: How, q: Tensor) -> dict[str, Any]:
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
    return in_jax.to_jax(padding.int().expand(q.shape[0], -1))[0]


@cache
def _compiled(backward: bool) -> Any:
    jax = in_jax.load()
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


KERNEL = JaxPallas
