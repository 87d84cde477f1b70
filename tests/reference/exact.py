"""Attention and its gradients in 50-digit arithmetic, and made-up problems small enough for it."""

import mpmath
import torch

from accuracy.reference.float64 import Reference

mpmath.mp.dps = 50
TENSORS = ("out", "lse", "dq", "dk", "dv", "delta")


def exact(q, k, v, dout, scale, causal, sees=None, cap=None, sink=None, factors=None) -> dict[str, list]:
    """Attention and its gradients of one head in 50-digit arithmetic; scale is the exact value of the float.

    Causal: the last query sees the last key. sees(i, j): another mask. cap: of the scores; sink: one more score
    of each row, without a value; factors: (Sq, S), what a dropout multiplies the weights by.
    """
    q, k, v, dout = (mpmath.matrix(x.tolist()) for x in (q, k, v, dout))
    length, keys, scale = q.rows, k.rows, mpmath.mpf(scale)
    scores = q * k.T * scale
    slope = scores.apply(lambda s: 1 - mpmath.tanh(s / cap) ** 2 if cap else mpmath.mpf(1))
    scores = scores.apply(lambda s: cap * mpmath.tanh(s / cap)) if cap else scores
    weights = mpmath.matrix(length, keys)
    lse = []
    for i in range(length):
        seen = [j for j in range(keys) if (sees(i, j) if sees else not causal or j <= i + keys - length)]
        total = mpmath.fsum(mpmath.exp(scores[i, j]) for j in seen) + (0 if sink is None else mpmath.exp(sink))
        lse.append(mpmath.log(total))
        for j in seen:
            weights[i, j] = mpmath.exp(scores[i, j]) / total
    factor = mpmath.matrix(length, keys).apply(lambda _: mpmath.mpf(1)) if factors is None else mpmath.matrix(factors)
    kept = mpmath.matrix(length, keys)
    for i in range(length):
        for j in range(keys):
            kept[i, j] = weights[i, j] * factor[i, j]
    out = kept * v
    delta = [mpmath.fsum(dout[i, d] * out[i, d] for d in range(out.cols)) for i in range(length)]
    dp = dout * v.T
    ds = mpmath.matrix(length, keys)
    for i in range(length):
        for j in range(keys):
            ds[i, j] = weights[i, j] * (dp[i, j] * factor[i, j] - delta[i]) * slope[i, j]
    dsink = [] if sink is None else [-mpmath.fsum(mpmath.exp(sink - a) * b for a, b in zip(lse, delta, strict=True))]
    return {
        "dsink": dsink, "out": out.tolist(), "lse": lse, "delta": delta,
        "dq": (ds * k * scale).tolist(), "dk": (ds.T * q * scale).tolist(), "dv": (kept.T * dout).tolist(),
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


def head(reference: Reference, name: str, index: int) -> torch.Tensor:
    tensor = getattr(reference, name)
    return tensor[0, index] if name in ("lse", "delta") else tensor[0, :, index]


MASKS = {
    "window": ({"causal": True, "window": 5}, lambda i, j: i - 5 <= j <= i),
    "window_to_both_sides": ({"causal": False, "window": 3}, lambda i, j: abs(i - j) <= 3),
    "documents": ({"causal": True, "documents": (5, 1, 18)}, lambda i, j: j <= i and (i < 5) == (j < 5)
                  and (i < 6) == (j < 6)),
    "window_in_documents": ({"causal": False, "window": 2, "documents": (10, 14)},
                            lambda i, j: abs(i - j) <= 2 and (i < 10) == (j < 10)),
    "capped": ({"causal": True, "softcap": 0.75}, lambda i, j: j <= i),
    "capped_window": ({"causal": True, "softcap": 2.5, "window": 4}, lambda i, j: i - 4 <= j <= i),
}  # fmt: skip
