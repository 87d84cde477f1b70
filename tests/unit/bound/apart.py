"""Which rows of a problem are tied, or exactly representable? Their errors are no sums of many independent roundings.

In: q, k, v, dout (B, S, H, D) as rounded to their dtype, one head each. Out: by tensor, True for rows of which

- it is tied: at least half of the row's weight is on pairs of a query i and a key j whose score another key of the row
  has, too, or (out, dq, dk) whose value v_j, or (dk, dv) whose dout_i occurs again;
- P is one-hot to the last bit of the inputs' dtype, 1 - max P <= u, as in a row with one key: out is v_j to within u,
  and dS = P (dP - delta) vanishes. A row of dk, dv: at least half of the key's weight is in such rows, or tied ones;
- lse alone: at least half of the products that its largest score sums are multiples of float32's spacing at that score,
  so that adding them rounds nothing.

No row is looked up by the name of its distribution, and no error is used.
"""

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.runtime.rounding import spacing


def apart(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> dict[str, Tensor]:
    """Causal. By tensor: (B, S, H, 1), of lse (B, H, S)."""
    u = FORMATS[str(q.dtype).removeprefix("torch.")].unit_roundoff
    q, k, v, dout = (x.double().transpose(1, 2) for x in (q, k, v, dout))
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    s = ((q @ k.mT) * scale).masked_fill(hidden, -torch.inf)
    p = s.softmax(-1)
    tied = repeated_scores(s)
    of_values, of_gradients = tied | repeated(v)[..., None, :], tied | repeated(dout)[..., None]
    hot = 1 - p.amax(-1) <= u
    row = hot | half(p, of_values, -1)
    from_hot = of_gradients | hot[..., None]
    keys = {"dk": half(p, of_values | from_hot, -2), "dv": half(p, from_hot, -2)}
    lse = hot | half(p, tied, -1) | exact_sums(q, k, s)
    wide = {"out": row, "dq": row} | keys
    return {name: x.transpose(1, 2)[..., None] for name, x in wide.items()} | {"lse": lse}


def half(p: Tensor, chosen: Tensor, dim: int) -> Tensor:
    """Whether at least half of a row's, or of a key's, weight is on chosen pairs."""
    return 2 * (p * chosen).sum(dim) >= p.sum(dim)


def repeated_scores(s: Tensor) -> Tensor:
    """(..., S, S): whether another key of the row has the same score."""
    ordered, place = s.sort(-1)
    same = ordered[..., 1:] == ordered[..., :-1]
    found = torch.zeros_like(s, dtype=torch.bool)
    found[..., 1:] |= same
    found[..., :-1] |= same
    return torch.zeros_like(found).scatter(-1, place, found)


def repeated(x: Tensor) -> Tensor:
    """(B, H, S) of x (B, H, S, D): whether another token of the head has the same vector."""
    return (x[..., :, None, :] == x[..., None, :, :]).all(-1).sum(-1) > 1


def granule(x: Tensor) -> Tensor:
    """Largest power of two of which x is a multiple; infinite for 0. x has at most 30 bits."""
    significand, exponent = torch.frexp(x)
    digits = (significand * 2.0**30).long()
    return torch.ldexp((digits & -digits).double(), exponent - 30).masked_fill(x == 0, torch.inf)


def exact_sums(q: Tensor, k: Tensor, s: Tensor) -> Tensor:
    """(B, H, S): whether adding the products of a row's largest score rounds in at most half of the additions."""
    top = s.argmax(-1, keepdim=True).expand(*q.shape)
    key = k.gather(2, top)
    level = (q * key).sum(-1, keepdim=True)
    return (granule(q) * granule(key) >= spacing(level, "float32")).double().mean(-1) >= 0.5
