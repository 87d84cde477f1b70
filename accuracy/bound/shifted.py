"""By how much is each result off in the mean where tensor cores cut off their sums? README.md, section 5b.

In: rows of a head, their scores and the policy. Out: the part of the bound that grows in proportion to the number of
cuts, not to its root. Signed, to first order: what rows add to dk and dv is added up before its size is taken.
"""

from dataclasses import dataclass

from torch import Tensor

from accuracy.bound.forward import Rows, Scores
from accuracy.bound.policy import Policy


@dataclass(frozen=True)
class Shifted:
    """Mean errors, minus: of out, dq (R, D) and lse (R, 1); of the terms of dk and dv (C, D), without what their own
    sums lose."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def shifted(rows: Rows, found: Scores, policy: Policy) -> Shifted:
    """Return the mean errors of one pass over some rows."""
    p, slope, scale = found.p, found.slope, rows.scale
    exponent = slope * scale * lost(rows.q, rows.k.T, policy)
    lse = (p * exponent).sum(1, keepdim=True)
    moved = p * (exponent - lse)  # of the weights, normalised
    out = policy.lost(rows.out, p @ rows.v.abs(), found.terms) + moved @ rows.v
    delta = (rows.dout * out).sum(1, keepdim=True)
    off = rows.dout @ rows.v.T - (rows.delta if rows.dlse is None else rows.delta - rows.dlse)
    of_ds = slope * (moved * off + p * (lost(rows.dout, rows.v.T, policy) - delta))
    size = scale * (p * slope * off).abs() @ rows.k.abs()
    dq = scale * (of_ds @ rows.k) + policy.lost(rows.dq, size, found.terms)
    return Shifted(out, lse, dq, scale * (of_ds.T @ rows.q), moved.T @ rows.dout)


def lost(left: Tensor, right: Tensor, policy: Policy) -> Tensor:
    """By how much the elements of a product of two matrices are too small in the mean."""
    return policy.lost(left @ right, left.abs() @ right.abs(), left.shape[1])
