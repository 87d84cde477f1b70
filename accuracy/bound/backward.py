"""What roundings can do to delta, dS and the terms of dq, dk and dv of some rows of one head: README.md, section 4."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.bound.forward import Forward, Rows, Scores
from accuracy.bound.policy import Policy, flushed, grown, half_spacing, tiny_weights, underflow, unit


@dataclass(frozen=True)
class Sums:
    """Of a sum over rows or keys: error, of its terms; size, of |terms|; variance, of its terms' errors; squares, of
    its terms; together, the sum of errors of dP and delta if all of them were one standard deviation to one side, as
    those of equal rows are. All in the shape of the result."""

    error: Tensor
    size: Tensor
    variance: Tensor
    squares: Tensor
    together: Tensor

    @classmethod
    def like(cls, result: Tensor) -> "Sums":
        """Return sums of nothing yet."""
        return cls(*(torch.zeros_like(result) for _ in range(5)))

    def add(self, place: slice, more: "Sums") -> None:
        """Add to a part, in place."""
        for mine, other in zip(vars(self).values(), vars(more).values(), strict=True):
            mine[place] += other


@dataclass(frozen=True)
class _Product:
    """dP = dout v^T (R, C). size, square: |dP| and its square; error, variance: as it is computed; most: the largest
    |dP| with its error."""

    exact: Tensor
    size: Tensor
    square: Tensor
    error: Tensor
    variance: Tensor
    most: Tensor


def backward(rows: Rows, found: Scores, done: Forward, policy: Policy) -> tuple[Sums, Sums, Sums, Sums | None]:
    """The sums of dq (R, D), dk and dv (C, D), and the terms of a bias (R, C) where they are asked for."""
    u, scale, p = policy.u, rows.scale, found.p
    weight, once = unit(policy.weights), policy.weight_roundings == 1
    count = policy.weight_roundings + (rows.dlse is not None)  # of dS: dlse adds a part to it
    of_dp = _dp(rows, policy)
    dp, dp_variance = of_dp.exact, of_dp.variance
    level = found.top + rows.lse.abs() + (found.terms + 1).log()
    read = done.lse + unit(policy.lse) * rows.lse.abs() * (policy.lse != policy.stored_lse)
    exponent = (found.error + (read + u * (policy.exponential + 8 * level))).expm1_()
    grows = (1 + weight) ** policy.weight_roundings
    weights = (exponent * grows).add_(grows - 1)
    p2, apart = p.square(), (dp - rows.delta).square()
    delta, delta_variance = _delta(rows, found, done, of_dp, p2, apart, weights, policy)
    pull, pulls = rows.delta, rows.delta.abs()
    ds = p * (dp - pull)
    size, ds2 = ds.abs(), ds.square()
    if rows.dlse is not None:  # a part of its own, which may be off otherwise
        pull, pulls, part = pull - rows.dlse, pulls + rows.dlse.abs(), p * rows.dlse
        apart, ds, size, ds2 = (dp - pull).square(), ds + part, size + part.abs(), ds2 + part.square()
    of_terms = of_dp.error.add(of_dp.size, alpha=4 * u).add_(delta + 4 * u * pulls).mul_(p)
    off = of_terms.addcmul(of_terms, exponent).addcmul_(exponent, size)
    if not once:  # P is stored before dS is made of it
        off.addcmul_(rows.visible, of_dp.most + (pulls + delta), value=underflow(policy.weights))
    smallest = underflow(policy.weights) * (max(1.0, 1 / scale) if once else 1 + 1 / scale)

    def stored(off: Tensor, size: Tensor) -> Tensor:
        grows = (1 + weight) ** count
        return (off * grows).add_(size, alpha=grows - 1).add_(rows.visible, alpha=smallest)

    of_bias = (stored(off, size), size, ds2, apart) if rows.of_bias else None
    before_cap, pulled, pulled2 = ds2, p, p2
    if rows.softcap is not None:
        slope_error = 2 * found.score_error / rows.softcap + 8 * u
        off = off * (found.slope + slope_error) + size * slope_error
        ds, size, ds2, apart, pulled = (x * found.slope for x in (ds, size, ds2 * found.slope, apart * found.slope, p))
        pulled2 = pulled.square()
    off = stored(off, size)
    off_p = weights.mul_(p).add_(rows.visible, alpha=underflow(policy.weights))
    k, q, dout = rows.k.abs(), rows.q.abs(), rows.dout.abs()
    errors = (off @ k).mul_(scale), (off.T @ q).mul_(scale), off_p.T @ dout
    sizes = (size @ k).mul_(scale), (size.T @ q).mul_(scale), p.T @ dout
    del of_dp, of_terms, exponent, weights, off, off_p, size  # a third of the memory, before that of the variances

    of_weights = count * weight**2 / 3
    least = rows.visible * (underflow(policy.weights) ** 2 / 3)
    read_variance = done.lse_variance + (unit(policy.lse) ** 2 / 3 * rows.lse.square())
    off2 = (pulled2 * dp_variance).addcmul_(ds2, found.spread + (of_weights + 6 * u**2))
    off2.add_(least, alpha=max(1.0, scale**-2)).add_(tiny_weights(p2, apart, policy))
    k2, q2, dout2 = rows.k.square(), rows.q.square(), rows.dout.square()
    mean = scale * (pulled @ rows.k)
    of_lse = 0.0 if rows.dlse is None else rows.dlse * mean
    shared = delta_variance * mean.square() + read_variance * ((rows.dq - of_lse).square() + of_lse**2)
    of_dq = scale**2 * (off2 @ k2) + shared
    whole = off2.addcmul_(pulled2, delta_variance).addcmul_(ds2, read_variance)
    both, together = pulled * (dp_variance + delta_variance).sqrt_(), (pulled * dp_variance.sqrt()) @ rows.k
    own = policy.weight_roundings * weight**2 / 3
    off2_p = least.addcmul(p2, found.spread + (read_variance + own))
    if rows.softcap is not None:  # 1 - tanh^2 cancels where the cap is reached
        of_slope = before_cap * (16 * u**2 + (2 * found.slope / rows.softcap) ** 2 * found.variance)
        of_dq, whole = of_dq + scale**2 * (of_slope @ k2), whole + of_slope
    if policy.alike:  # what of dS is stored as zero is lost to one side
        zero = ds.where(ds.abs() * min(1.0, scale) < underflow(policy.weights), 0.0)
        both, together = both + zero, together + zero @ rows.k
    dq = Sums(errors[0], sizes[0], of_dq, scale**2 * (ds2 @ k2), scale * together)
    dk = Sums(errors[1], sizes[1], scale**2 * (whole.T @ q2), scale**2 * (ds2.T @ q2), scale * (both.T @ rows.q))
    dv = Sums(errors[2], sizes[2], off2_p.T @ dout2, p2.T @ dout2, torch.zeros_like(rows.v))
    if of_bias is None:
        return dq, dk, dv, None
    error, size, ds2, apart = of_bias
    variance = p2 * (dp_variance + delta_variance) + ds2 * (found.spread + of_weights + 6 * u**2 + read_variance)
    variance += least * max(1.0, scale**-2) + tiny_weights(p2, apart, policy)
    return dq, dk, dv, Sums(error, size, variance, ds2, p * (dp_variance + delta_variance).sqrt())


def finished(sums: Sums, reference: Tensor, terms: Tensor, heads: int, policy: Policy) -> tuple[Tensor, Tensor]:
    """Error and variance of a gradient as it is stored. terms: how many terms a sum has, of one head; heads: that share
    it."""
    u, size = policy.u, sums.size + sums.error
    roundings = policy.roundings(terms * heads, "gradient") + (heads - 1) * policy.by_head
    roundings = roundings + (policy.products != policy.sums)
    chain = (1 + grown(terms * heads + 8, u)) * (1 + grown(roundings, unit(policy.partial))) - 1
    small = underflow(policy.partial)
    error = sums.error + chain * size + roundings * small
    lost = flushed(reference, policy.dtype)
    error = error + half_spacing(reference.abs() + error, policy.dtype) + lost
    each = u**2 / 12 * (terms * heads + 8) + unit(policy.partial) ** 2 / 6 * roundings
    alike = policy.alike * policy.weight_roundings * unit(policy.weights) ** 2 / 3
    variance = (
        sums.variance + sums.together.square() + each * (sums.squares + reference.square()) + alike * reference.square()
    )
    below = roundings * small**2 / 3
    variance = variance + below + lost.square()
    return error, variance + half_spacing(reference, policy.dtype).square() / 3


def _dp(rows: Rows, policy: Policy) -> _Product:
    dp = rows.dout @ rows.v.T
    size, square = dp.abs(), dp.square()
    u, dim, short = policy.u, rows.v.shape[1], policy.products != policy.sums
    rounding = unit(policy.products) if short else 0.0
    error = rows.dout.abs() @ rows.v.abs().T
    error *= grown(dim + 2, u) + 2 * rounding * policy.casts
    squares = rows.dout.square() @ rows.v.square().T
    variance = (squares + square).mul_(u**2 / 12 * dim)
    if policy.casts:
        variance.add_(squares, alpha=2 * rounding**2 / 3)
    if short:
        tiny = underflow(policy.products)
        error += tiny * (1 + policy.casts * rows.dout.abs().sum(1, keepdim=True))
        if policy.casts:
            error += tiny * rows.v.abs().sum(1)
        variance += square.clamp(max=tiny**2 / 3)
    error.mul_(1 + rounding).add_(size, alpha=rounding)
    return _Product(dp, size, square, error, variance.add_(square, alpha=rounding**2 / 3), size + error)


def _delta(
    rows: Rows, found: Scores, done: Forward, dp: _Product, p2: Tensor, apart: Tensor, weights: Tensor, policy: Policy
) -> tuple[Tensor, Tensor]:
    """Error and variance of delta, out of the stored out or, as autograd does, out of p dP: the larger of the two. p2,
    apart: squares of P and of dP - delta."""
    u, dim, size = policy.u, rows.v.shape[1], rows.dout.abs()
    reached = rows.out.abs() + done.out
    own = grown(dim + 2, u) + unit(policy.products) * policy.casts
    of_out = (size * done.out + own * size * reached).sum(1, keepdim=True)
    chain = 1 + grown(found.terms + 4, u)
    of_p = (weights * chain).add_(chain).mul_(dp.most).sub_(dp.size).mul_(found.p)
    of_p = of_p.sum(1, keepdim=True) + underflow(policy.weights) * (rows.visible * dp.most).sum(1, keepdim=True)
    rounding = unit(policy.products) if policy.products != policy.sums else 0.0
    tiny = underflow(policy.products) if rounding else 0.0
    error = torch.maximum(of_out, of_p) * (1 + rounding) + rounding * rows.delta.abs() + tiny
    added = 0.0 if rows.dlse is None else rows.dlse.abs()
    error = error + rounding * added
    products = rows.dout * rows.out
    of_weights = policy.weight_roundings * unit(policy.weights) ** 2 / 3
    moved = (dp.square * of_weights).addcmul_(found.spread, apart).mul_(p2)
    variance = (rows.dout.square() * done.own_variance).sum(1, keepdim=True) + moved.sum(1, keepdim=True)
    variance += (rounding**2 + u**2) / 3 * added**2
    variance += (rounding**2 / 3 + policy.alike * of_weights) * rows.delta.square()
    variance += 2 * done.shared * rows.delta.square()  # twice: the weights are off by the same factor
    variance += rows.delta.square().clamp(max=tiny**2 / 3)
    variance += u**2 / 12 * dim * (products.square().sum(1, keepdim=True) + rows.delta.square())
    return error, variance
