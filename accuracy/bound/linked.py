"""The sqrt form of dS and dq where it is known what the backward reads of the forward: README.md, section 5a."""

import math
from dataclasses import dataclass

from torch import Tensor

from accuracy.bound.forward import Forward, Rows, Scores, exponential_again
from accuracy.bound.policy import LANES, Policy, half_spacing, tiny_weights, underflow, unit


@dataclass(frozen=True)
class Side:
    """Variances: dq, of its terms' errors (R, D); ds, of dS (R, C); weights, of P without its rounding, relative.
    both, together: what `Sums.together` of dk and dq is made of."""

    dq: Tensor
    ds: Tensor
    weights: Tensor
    both: Tensor
    together: Tensor


def linked(
    rows: Rows, found: Scores, done: Forward, dp: Tensor, dp_variance: Tensor, delta_variance: Tensor, ds: Tensor,
    pulled: Tensor, policy: Policy,
) -> Side:  # fmt: skip
    """Errors of a row's scores, and of dP where delta is sum P dP, count as what is left of them after the row's mean.

    A weight's exponent is off by e_j - sum p e, of the backward's own exp by f_j, and by what the row shares.
    """
    link, p, scale, u = found.linked, found.p, rows.scale, policy.u
    assert link is not None
    kept = policy.reads == "weights"
    score = link.score + link.own if kept else link.score
    squares = p.square()
    again = 0.0 * p if kept else exponential_again(p, policy)
    shared = _shared(rows, found, done, policy) + (0.0 if kept else (squares * link.own).sum(1, keepdim=True))
    total = (squares * score).sum(1, keepdim=True)
    weights = score * (1 - 2 * p) + total + again + shared

    of_ds = ds.square() * (policy.weight_roundings * unit(policy.weights) ** 2 / 3 + 6 * u**2)
    of_ds = of_ds + ds.square().clamp(max=underflow(policy.weights) ** 2 / 3 * max(1.0, scale**-2))
    of_ds = of_ds + tiny_weights(squares, ((dp - rows.delta) * found.slope).square(), policy)
    mean = pulled @ rows.k
    k2, root = rows.k.square(), dp_variance.sqrt()
    dq = scale**2 * ((of_ds + ds.square() * again) @ k2) + shared * rows.dq.square()
    dq += scale**2 * _centred(ds, p, score, rows.k, rows.dq / scale)
    dq += scale**2 * delta_variance * mean.square()
    if kept:
        dq += scale**2 * _centred(pulled, p, dp_variance, rows.k, mean)
        of_dp = dp_variance * (1 - 2 * p) + (squares * dp_variance).sum(1, keepdim=True)
        together = (pulled * root) @ rows.k - mean * (p * root).sum(1, keepdim=True)
    else:
        dq += scale**2 * (pulled.square() * dp_variance) @ k2
        of_dp, together = dp_variance, (pulled * root) @ rows.k
    of_dp = of_dp + delta_variance
    of_rows, of_keys = rows.ties  # only equal vectors have equal errors
    both = pulled * of_dp.sqrt() * of_rows
    return Side(dq, of_ds + ds.square() * weights + pulled.square() * of_dp, weights, both, together * of_keys)


def _centred(terms: Tensor, p: Tensor, variance: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """Variance of sum_j e_j (terms_j k_j - p_j total), e_j independent: (R, D)."""
    found = (terms.square() * variance) @ k.square() - 2 * total * ((terms * p * variance) @ k)
    return (found + total.square() * (p.square() * variance).sum(1, keepdim=True)).clamp_(min=0.0)


def _shared(rows: Rows, found: Scores, done: Forward, policy: Policy) -> Tensor:
    """Variance of what a row's weights share: roundings of lse and of its product with log2 e, or those of P's sum."""
    if policy.reads == "weights":
        return _shared_weights(found, policy)
    read = unit(policy.lse) ** 2 / 3 * rows.lse.square() * (policy.lse != policy.stored_lse)
    return done.lse_own + read + half_spacing(rows.lse, policy.sums).square() / 3


def _shared_weights(found: Scores, policy: Policy) -> Tensor:
    """Variance of the sum that P is divided by, and of its reciprocal."""
    one = found.p.sum(1, keepdim=True)
    return _in_lanes(found.p.square().sum(1, keepdim=True), one, found.terms, policy) + policy.u**2 / 3


def of_delta(rows: Rows, found: Scores, dp: Tensor, policy: Policy) -> Tensor:
    """Variance of sum P dP without that of P's exponents and of dP: its products, its sum, and P's sum, which is not 1.
    An addition loses no more than its smaller operand, a product of P near 1 no more than it is off dP."""
    terms, square = found.p * dp, rows.delta.square()
    squares = terms.square().sum(1, keepdim=True)
    variance = _in_lanes(squares, square, found.terms, policy) + policy.u**2 / 6 * squares
    top, place = found.p.max(1, keepdim=True)
    first = terms.gather(1, place).abs()
    most = 2 * (terms.abs().sum(1, keepdim=True) - first) + (1 / top - 1) * first
    return variance.minimum(most.square()) + _shared_weights(found, policy).minimum((1 / top - 1).square()) * square


def _in_lanes(squares: Tensor, square: Tensor, terms: Tensor, policy: Policy) -> Tensor:
    """Variance of a sum in `LANES` partial sums, which are added pairwise; squares: sum of its terms' squares."""
    lane = policy.partial_sums(squares, squares + square / LANES)
    return policy.u**2 / 12 * (policy.spread(terms) / LANES * lane + 2 * math.log2(LANES) * square)
