"""Attention and its gradients in 50-digit arithmetic, and made-up problems small enough for it."""

import mpmath
import torch

from accuracy.reference.float64 import Reference

mpmath.mp.dps = 50
TENSORS = ("out", "lse", "dq", "dk", "dv", "delta")


def exact(q, k, v, dout, scale, causal, sees=None, cap=None, sink=None) -> dict[str, list]:
    """Attention and its gradients of one head in 50-digit arithmetic; scale is the exact value of the float.

    Causal: the last query sees the last key. sees(i, j): another mask. cap: of the scores; sink: one more score
    of each row, without a value.
    """
    q, k, v, dout = (mpmath.matrix(x.tolist()) for x in (q, k, v, dout))
    length, keys, scale = q.rows, k.rows, mpmath.mpf(scale)
    scores, dp = q * k.T * scale, dout * v.T
    weights, ds = (mpmath.matrix(length, keys) for _ in range(2))
    lse, delta = [], []
    for i in range(length):
        seen = [j for j in range(keys) if (sees(i, j) if sees else not causal or j <= i + keys - length)]
        slope = [1 - mpmath.tanh(scores[i, j] / cap) ** 2 if cap else 1 for j in range(keys)]
        row = [cap * mpmath.tanh(scores[i, j] / cap) if cap else scores[i, j] for j in range(keys)]
        total = mpmath.fsum(mpmath.exp(row[j]) for j in seen) + (0 if sink is None else mpmath.exp(sink))
        lse.append(mpmath.log(total))
        for j in seen:
            weights[i, j] = mpmath.exp(row[j]) / total
        delta.append(mpmath.fsum(weights[i, j] * dp[i, j] for j in seen))
        for j in seen:
            ds[i, j] = weights[i, j] * (dp[i, j] - delta[i]) * slope[j]
    dsink = [] if sink is None else [-mpmath.fsum(mpmath.exp(sink - a) * b for a, b in zip(lse, delta, strict=True))]
    return {
        "dsink": dsink, "out": (weights * v).tolist(), "lse": lse, "delta": delta,
        "dq": (ds * k * scale).tolist(), "dk": (ds.T * q * scale).tolist(), "dv": (weights.T * dout).tolist(),
    }  # fmt: skip


def relative_error(x: torch.Tensor, exact_values: list) -> float:
    """Frobenius, in 50 digits."""
    flat = [value for row in exact_values for value in (row if isinstance(row, list) else [row])]
    errors = [mpmath.mpf(a) - b for a, b in zip(x.flatten().tolist(), flat, strict=True)]
    return float(mpmath.norm(errors) / mpmath.norm(flat))


def problem(seed: int, heads: int = 2, heads_kv: int = 1, batch: int = 1, length: int = 24, dim: int = 8, spread=1.0):
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> torch.Tensor:
        return torch.randn(batch, length, count, dim, generator=generator).to(torch.bfloat16) * spread

    return draw(heads), draw(heads_kv), draw(heads_kv), draw(heads)


def of_head(index: int, q, k, v, dout) -> list[torch.Tensor]:
    """q, k, v, dout of one query head over the only key head, (S, D)."""
    return [q[0, :, index], k[0, :, 0], v[0, :, 0], dout[0, :, index]]


def head(reference: Reference, name: str, index: int) -> torch.Tensor:
    tensor = getattr(reference, name)
    return tensor[0, index] if name in ("lse", "delta") else tensor[0, :, index]
