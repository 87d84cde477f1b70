"""Plain attention out of torch products, in any dtype, with every rounding place of a kernel as a knob.

Rows are computed in chunks so that no more than `CHUNK_ELEMENTS` scores exist at once; a row's arithmetic does not
depend on the chunking. Standard formulas (Dao et al. 2022, algorithm 4, without the tiling over keys): as in flash
kernels, weights are rounded before they are normalised, and their sum is of the unrounded ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy import device as devices
from accuracy.dtype import FORMATS, accumulation_dtype
from accuracy.heads import by_group, by_kv_head, by_token
from accuracy.kernel.base import ALL_DTYPES, Abilities

CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Options:
    """compute_dtype: of scores, softmax and products; probability_dtype: to which P and dS are rounded before they
    are multiplied (flash kernels round them to the inputs' dtype); tf32: products of float32 in TF32 (CUDA)."""

    compute_dtype: str = "accumulate"
    probability_dtype: str = "input"
    tf32: bool = False


def abilities(device: str, options: Options) -> Abilities:
    """Everything, except TF32 without a GPU."""
    missing = "has no tf32 on the CPU; set kernel.eager.tf32=false" if options.tf32 and device == "cpu" else ""
    for key in ("compute_dtype", "probability_dtype"):
        word = getattr(options, key)
        if word not in ("input", "accumulate", *FORMATS):
            missing = f"does not know {key} {word!r}; allowed: input, accumulate, {', '.join(FORMATS)}"
    return Abilities(dtypes=ALL_DTYPES, partial_dtypes=ALL_DTYPES, missing=missing)


def build(device: str, options: Options) -> "Eager":
    """The kernel with its knobs set."""
    return Eager(options)


@dataclass(frozen=True)
class Eager:
    """See `accuracy.kernel.base.Kernel`."""

    options: Options

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        compute, probability = self._dtypes(q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        out = torch.empty_like(q, dtype=out_dtype)
        lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=_lse_dtype(q))
        with devices.switched(tf32_products=self.options.tf32):
            for rows, limit in _chunks(q, k, causal):
                scores = _scores(q[:, rows], keys[:, :, :limit], scale, causal, rows.stop, q.shape[1], k.shape[1])
                top = scores.amax(dim=-1, keepdim=True)
                weights = torch.exp(scores - top.masked_fill(top == -torch.inf, 0.0))
                total = weights.sum(dim=-1, keepdim=True)
                normaliser = top + torch.log(total)
                product = weights.to(probability).to(compute) @ values[:, :, :limit]
                out[:, rows] = by_token(product / total).to(out_dtype)
                lse[:, :, rows] = normaliser.flatten(1, 2).squeeze(-1).to(lse.dtype)
        return out, lse

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *,
        scale: float,
        causal: bool,
        gradient_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel.backward`."""
        compute, probability = self._dtypes(q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        heads_kv = k.shape[2]
        dq = torch.empty_like(q, dtype=gradient_dtype)
        dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
        with devices.switched(tf32_products=self.options.tf32):
            for rows, limit in _chunks(q, k, causal):
                query, dout_rows = (
                    by_group(q[:, rows], heads_kv, compute),
                    by_group(dout[:, rows], heads_kv, compute),
                )
                scores = _scores(q[:, rows], keys[:, :, :limit], scale, causal, rows.stop, q.shape[1], k.shape[1])
                normaliser = lse[:, :, rows].to(compute).unflatten(1, (heads_kv, -1)).unsqueeze(-1)
                weights = torch.exp(scores - normaliser)
                delta = (dout_rows * by_group(out[:, rows], heads_kv, compute)).sum(-1, keepdim=True)
                slope = weights * (dout_rows @ values[:, :, :limit].mT - delta)
                weights, slope = weights.to(probability).to(compute), slope.to(probability).to(compute)
                dq[:, rows] = by_token((slope @ keys[:, :, :limit]) * scale).to(gradient_dtype)
                dk[:, :, :limit] += (slope.mT @ query).sum(2, keepdim=True)
                dv[:, :, :limit] += (weights.mT @ dout_rows).sum(2, keepdim=True)
        return dq, by_token(dk * scale).to(gradient_dtype), by_token(dv).to(gradient_dtype)

    def _dtypes(self, q: Tensor) -> tuple[torch.dtype, torch.dtype]:
        case = str(q.dtype).removeprefix("torch.")
        words = {"input": case, "accumulate": accumulation_dtype(case)}
        compute = words.get(self.options.compute_dtype, self.options.compute_dtype)
        probability = words.get(self.options.probability_dtype, self.options.probability_dtype)
        return getattr(torch, compute), getattr(torch, probability)


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _chunks(q: Tensor, k: Tensor, causal: bool) -> Iterator[tuple[slice, int]]:
    """Rows of queries at a time, and the number of leading keys that they can see."""
    batch, length, heads, _ = q.shape
    keys = k.shape[1]
    rows = max(1, CHUNK_ELEMENTS // (batch * heads * keys))
    for begin in range(0, length, rows):
        end = min(begin + rows, length)
        yield slice(begin, end), (end + keys - length if causal else keys)


def _scores(q: Tensor, keys: Tensor, scale: float, causal: bool, end: int, length: int, total: int) -> Tensor:
    """Scaled scores (B, Hk, G, rows, limit) of the rows that stop at `end`, hidden ones at -inf."""
    scores = (by_group(q, keys.shape[1], keys.dtype) @ keys.mT) * scale
    if not causal:
        return scores
    rows, limit = scores.shape[-2:]
    last_seen = torch.arange(end - rows, end, device=q.device) + (total - length)
    hidden = torch.arange(limit, device=q.device) > last_seen[:, None]
    return scores.masked_fill_(hidden, -torch.inf)
