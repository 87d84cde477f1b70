"""What roundings can do to scores, out and lse of some rows of one head. The derivation is in README.md, sections 2-3.

Letters as there: s scores, p weights, E largest errors (absolute), V variances; u the unit roundoff of sums.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.bound.policy import (
    FAST_EXPONENTIAL,
    SHARE_OF_MEAN,
    SMALLEST_TILE,
    Policy,
    flushed,
    grown,
    half_spacing,
    underflow,
    unit,
)

DEVIATIONS = 7.0
"""So many of a weight have a chance below 1e-10: a limit of 1e-6 for one of 1e4 elements."""


@dataclass(frozen=True)
class Rows:
    """Some rows of one query head, and the keys from the first that one of them sees to the last: float64 matrices q,
    dout, out, dq (R, D), k, v (C, D), columns lse, delta (R, 1) of the exact result; visible: (R, C), 1 or 0; bias:
    what a mask adds to the scores (R, C); lost: rows to all of whose scores it adds so much that nothing else is left
    (R, 1); dlse: the gradient of lse (R, 1), if
    it has one; of_bias: whether the gradient of what is added to the scores is asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    out: Tensor
    lse: Tensor
    delta: Tensor
    dq: Tensor
    visible: Tensor
    bias: Tensor | None
    lost: Tensor | None
    scale: float
    softcap: float | None = None
    sink: float | None = None
    dlse: Tensor | None = None
    of_bias: bool = False


@dataclass(frozen=True)
class Scores:
    """p: weights; slope: of the cap; top: largest |score| of a row (R, 1); terms: keys of a row (R, 1); rescales: of
    its running sums; level: of every partial's |lse|; error, variance: of the exponent s - lse with lse exact; spread:
    variance of what a weight is off by through that, over the weight; score_error: of the score alone; alike: variance
    that exp's errors share over a row (R, 1)."""

    p: Tensor
    slope: Tensor | float
    top: Tensor
    terms: Tensor
    rescales: Tensor
    level: Tensor
    error: Tensor
    variance: Tensor
    spread: Tensor
    score_error: Tensor
    alike: Tensor


@dataclass(frozen=True)
class Forward:
    """Errors and variances of out (R, D) and lse (R, 1) as they are stored; own_variance: of out's sums and its last
    rounding alone, which differ from dim to dim; shared: of the factor that a row of out is off where it is normalised
    by its lse (R, 1)."""

    out: Tensor
    lse: Tensor
    out_variance: Tensor
    lse_variance: Tensor
    own_variance: Tensor
    shared: Tensor


def scores(rows: Rows, policy: Policy) -> Scores:
    """How far each exponent can be off."""
    u, short, dim, casts = policy.u, unit(policy.products), rows.q.shape[1], policy.products != policy.sums
    s = (rows.q @ rows.k.T).mul_(rows.scale)
    square = (rows.q.square() * rows.scale**2) @ rows.k.square().T
    chain = grown(dim + 4, u)
    error = (rows.q.abs() * rows.scale) @ rows.k.abs().T
    error *= chain + 3 * short * (1 + chain) * casts
    own = s.square()
    variance = (square + own).mul_(u**2 / 12 * dim)
    variance.add_(own, alpha=u**2)
    if casts:  # below the normal numbers: of s, and of q or k times the scale
        tiny = underflow(policy.products)
        error += (tiny * (1 + rows.k.abs().sum(1))).maximum(tiny * (1 + rows.q.abs().sum(1, keepdim=True)))
        variance.add_(own, alpha=2 * short**2 / 3).add_(square, alpha=(1 + policy.casts) * short**2 / 3)
    slope: Tensor | float = 1.0
    if rows.softcap is not None:
        ratio = (s / rows.softcap).tanh()
        s, slope = ratio * rows.softcap, 1 - ratio.square()
        error += 8 * u * rows.softcap
        variance += 16 * u**2 * rows.softcap**2
    if rows.bias is not None and rows.lost is not None:  # added, and the sum rounded
        s = (s + rows.bias).masked_fill(rows.lost, 0.0)
        added = s.abs() + rows.bias.abs()
        error += (short + u) * added
        variance += (short**2 + u**2) / 3 * added.square()
    p = (s - rows.lse).masked_fill_(rows.visible == 0, -torch.inf).exp_()
    terms = rows.visible.sum(1, keepdim=True)
    top = (s.abs() * rows.visible).amax(1, keepdim=True)
    if rows.sink is not None:
        top.clamp_(min=abs(rows.sink))
    rescales = (terms / SMALLEST_TILE).ceil() + policy.pieces
    level = top + (terms + 1).log()
    apart = u * (policy.exponential + 12 * top + 8 * rescales)
    exponent = error + apart
    variance.add_(s.square(), alpha=u**2 / 3).add_(
        policy.exponential_variance + u**2 / 3 * (2 * top.square() + rescales)
    )
    alike = _alike(s - top, p, policy)
    if policy.merges:  # README.md, section 3: a partial's own lse, and its sum, count too
        largest = (exponent * rows.visible).amax(1, keepdim=True)
        exponent = exponent + 3 * (largest + unit(policy.weights)) + 2 * policy.merges * unit(policy.lse) * level
        variance = 3 * variance + policy.merges * unit(policy.lse) ** 2 / 3 * level.square()
    return Scores(p, slope, top, terms, rescales, level, exponent, variance, _of_weights(p, variance), error, alike)


def _of_weights(p: Tensor, variance: Tensor) -> Tensor:
    """Return the variance that a weight p has relative to itself, of that of its exponent.

    Where exponents are off by much, exp makes the large errors larger than their share, but no weight larger than 1.
    As many standard deviations of an exponent as a limit has are at most as many of the weight.
    """
    off = variance.sqrt().mul_(DEVIATIONS)
    most = p.clamp(min=1e-150).reciprocal_().maximum(off)
    return off.expm1_().minimum(most).div_(DEVIATIONS).square_()


def largest(rows: Rows, found: Scores) -> tuple[Tensor, Tensor]:
    """Error and variance of a row's largest score, before it is stored (R,). No maximum is further off than a score;
    one of n scores is with a chance of at most n p: twice the variance for n to 1e6 (README.md, section 5)."""
    lost = torch.zeros_like(found.top) if rows.lost is None else torch.where(rows.lost, torch.inf, 0.0)
    error, variance = ((x * rows.visible).amax(1) for x in (found.score_error, 2 * found.variance))
    return error + lost[:, 0], variance + lost[:, 0]


def _alike(arguments: Tensor, p: Tensor, policy: Policy) -> Tensor:
    """Of sum p e, e the errors of exp, a function of the fraction of argument / log 2: its mean, and as much of their
    variance as its first three harmonics add up to over a row. Nothing beside the rest, of a careful exp."""
    if policy.exponential < FAST_EXPONENTIAL:
        return torch.zeros_like(p[:, :1])
    turn = torch.polar(torch.ones_like(p), arguments * (2 * math.pi / math.log(2)))
    waves = itertools.accumulate([p * turn, turn, turn], torch.mul)
    added = torch.stack([wave.sum(1, keepdim=True).abs().square() for wave in waves])
    return policy.exponential_variance * (added.amax(0) + SHARE_OF_MEAN)


def forward(rows: Rows, found: Scores, policy: Policy) -> Forward:
    """How far out and lse can be off."""
    u, short = policy.u, unit(policy.weights)
    p, terms, rescales, level, visible = found.p, found.terms, found.rescales, found.level, rows.visible
    roundings = policy.roundings(terms, "forward")
    chain = (1 + grown(terms + rescales + 4, u)) * (1 + grown(roundings, unit(policy.partial)))
    of_lse = u * (policy.logarithm + 6 * (rows.lse.abs() + level))
    plain = found.error.exp().mul_(chain)
    longer = (u * policy.through_lse * (level - found.top)).exp()  # |s - lse| may be more than |s - m|, by log terms
    above = (plain * (longer * (1 + short) ** policy.weight_roundings)).sub_(1).mul_(p) @ rows.v.abs()
    above += underflow(policy.weights) * chain * (visible @ rows.v.abs())
    below = (plain * (1 + unit(policy.normaliser)) ** policy.weight_roundings).sub_(1).mul_(p).sum(1, keepdim=True)
    below += underflow(policy.normaliser) * chain * terms
    if rows.sink is not None:
        below += (rows.sink - rows.lse).exp() * (plain.amax(1, keepdim=True) - 1)
    left = (1 - below).clamp_(min=0.0)
    out = (above + rows.out.abs() * below) / left * (1 + 4 * u) + 4 * u * rows.out.abs()
    if policy.through_lse:  # a factor of the whole row
        out += (out + rows.out.abs()) * (of_lse + unit(policy.lse) * rows.lse.abs()).expm1()
    out += 6 * policy.merges * unit(policy.partial) * rows.v.abs().amax(0) + roundings * underflow(policy.partial)
    out += half_spacing(rows.out.abs() + out, policy.dtype) + flushed(rows.out, policy.dtype)
    depths = None
    if policy.stored_lse == policy.sums:
        lse = -left.log() + of_lse
    else:  # every step of logsumexp may be stored so
        coarse, depths = unit(policy.stored_lse), _below_peak(p)
        more = (p * plain * (coarse * depths[0]).expm1()).sum(1, keepdim=True) * (1 + short) ** policy.weight_roundings
        lse = -(left - more).clamp_(min=0.0).log() + of_lse + coarse * depths[1]
    lse = lse + 2 * policy.merges * unit(policy.lse) * level
    lse = lse + half_spacing(rows.lse.abs() + lse, policy.stored_lse)
    return Forward(out, lse, *_variances(rows, found, policy, roundings, depths))


def _variances(
    rows: Rows, found: Scores, policy: Policy, roundings: Tensor, depths: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, ...]:
    """Variances of out, lse, out alone, and of what all of a row of out shares. depths: as
    `_below_peak` returns them, where every step of logsumexp may be stored in the format of lse."""
    u, short = policy.u, policy.weight_roundings * unit(policy.weights) ** 2 / 3
    square, v_square = found.p.square(), rows.v.square()
    each = u**2 / 12 * (found.terms + found.rescales) + unit(policy.partial) ** 2 / 6 * roundings
    spread = square @ v_square + rows.out.square()
    moved = square * found.spread
    away = moved @ v_square - 2 * rows.out * (moved @ rows.v) + rows.out.square() * moved.sum(1, keepdim=True)
    own = each * spread + 4 * u**2 * rows.out.square()
    rounded = short * (square @ v_square + policy.alike * rows.out.square())
    own += half_spacing(rows.out, policy.dtype).square() / 3
    own += flushed(rows.out, policy.dtype).square()
    least = underflow(policy.weights) ** 2 / 3
    own += least * (rows.visible @ v_square)
    own += policy.merges * unit(policy.partial) ** 2 * v_square.amax(0) + roundings * underflow(policy.partial) ** 2 / 3
    out = own + away.clamp_(min=0.0)  # of p_j (v_j - out): what all weights share leaves no error
    out += rounded
    shared = policy.through_lse * _through_lse(rows, found, policy)
    out += shared * rows.out.square()
    lse = (square * found.variance).sum(1, keepdim=True) + found.alike
    lse += u**2 / 12 * (found.terms + found.rescales + policy.logarithm**2)
    lse += policy.weight_roundings * unit(policy.normaliser) ** 2 / 3 * square.sum(1, keepdim=True)
    lse += u**2 / 3 * (rows.lse.square() + found.top.square())
    lse += policy.merges * unit(policy.lse) ** 2 / 3 * found.level.square()
    if depths is not None:
        apart, depth = depths
        lse += unit(policy.stored_lse) ** 2 / 3 * ((square * apart.square()).sum(1, keepdim=True) + depth.square())
    lse += half_spacing(rows.lse, policy.stored_lse).square() / 3
    return out, lse, own, shared


def _below_peak(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far scores are below the largest of their row (R, C), and how far that is below lse (R, 1)."""
    exponent = p.clamp(min=1e-300).log()
    peak = exponent.amax(1, keepdim=True)
    return (peak - exponent) * (p > 0), peak.abs()


def _through_lse(rows: Rows, found: Scores, policy: Policy) -> Tensor:
    """Variance of the factor by which all exp(s - lse) of a row are off: no division takes these roundings out."""
    own = policy.u**2 * (rows.lse.square() + found.top.square()) + half_spacing(rows.lse, policy.lse).square()
    argument = found.p.clamp(min=1e-300).log()
    of_exponential = policy.u**2 / 3 * argument.square() + policy.exponential_variance
    return own / 3 + 2 * (found.p.square() * of_exponential).sum(1, keepdim=True)
