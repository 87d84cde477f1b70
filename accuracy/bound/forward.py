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
    SURE,
    Policy,
    flushed,
    grown,
    half_spacing,
    underflow,
    unit,
)
from accuracy.core.dtype import REFERENCE_ERROR
from accuracy.runtime.rounding import spacing


@dataclass(frozen=True)
class Rows:
    """Some rows of one query head, and the keys from the first that one of them sees to the last: float64 matrices q,
    dout, out, dq (R, D), k, v (C, D), columns lse, delta (R, 1) of the exact result; visible: (R, C), 1 or 0; bias:
    what a mask adds to the scores (R, C); lost: rows to all of whose scores it adds so much that nothing else is left
    (R, 1); ties: whether rows of dout, and of v, occur more than once in the head; dlse: the gradient of lse (R, 1), if
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
    ties: tuple[bool, bool] = (True, True)
    dlse: Tensor | None = None
    of_bias: bool = False


@dataclass(frozen=True)
class Scores:
    """p: weights; slope: of the cap; top: largest |score| of a row (R, 1); terms: keys of a row (R, 1); rescales: of
    its running sums; level: of every partial's |lse|; error, variance: of the exponent s - lse with lse exact;
    score_error: of the score alone; alike: variance that exp's errors share over a row (R, 1); linked: of what the
    backward reads, where that is known."""

    p: Tensor
    slope: Tensor | float
    top: Tensor
    terms: Tensor
    rescales: Tensor
    level: Tensor
    error: Tensor
    variance: Tensor
    score_error: Tensor
    alike: Tensor
    linked: "Linked | None" = None


@dataclass(frozen=True)
class Linked:
    """README.md, section 5a. peak: largest score of a row (R, 1); score, own: variances of a score and of its exp in
    the forward; weight: of the rounding of P, by key, relative."""

    peak: Tensor
    score: Tensor
    own: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Forward:
    """Errors and variances of out (R, D) and lse (R, 1) as they are stored; own_variance: of out's sums and its last
    rounding alone, which differ from dim to dim; lse_own: of lse without what its scores err by; shared: of the factor
    that a row of out is off where it is normalised by its lse (R, 1)."""

    out: Tensor
    lse: Tensor
    out_variance: Tensor
    lse_variance: Tensor
    own_variance: Tensor
    lse_own: Tensor
    shared: Tensor


def scores(rows: Rows, policy: Policy) -> Scores:
    """How far each exponent can be off."""
    u, short, dim, casts = policy.u, unit(policy.products), rows.q.shape[1], policy.products != policy.sums
    s = (rows.q @ rows.k.T).mul_(rows.scale)
    square = (rows.q.square() * rows.scale**2) @ rows.k.square().T
    chain = grown(policy.chain(dim) + 4, u)
    error = (rows.q.abs() * rows.scale) @ rows.k.abs().T
    error *= chain + 3 * short * (1 + chain) * casts
    own = s.square()
    variance = policy.partial_sums(square, own).mul_(u**2 / 12 * policy.spread(dim))
    variance.add_(own, alpha=u**2 if policy.reads == "anything" else u**2 / 3)
    if policy.split:
        variance += policy.cuts(square, own)
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
    linked = None
    if policy.reads != "anything" and not policy.merges and rows.sink is None:
        linked = _linked(s, p, variance, rows, rescales, policy)
    apart = u * (policy.exponential + 12 * top + 8 * rescales)
    exponent = error + apart
    if linked is None:
        variance.add_(s.square(), alpha=u**2 / 3).add_(
            policy.exponential_variance + u**2 / 3 * (2 * top.square() + rescales)
        )
    else:
        variance = linked.score + linked.own
    alike = _alike(s - top, p, policy)
    if policy.split:  # how far all scores of a row are from the mean shift
        mean = (p * s).sum(1, keepdim=True)
        variance = variance + policy.shift_spread**2 * (s - mean).square()
        alike = alike + policy.shift_spread**2 * mean.square()
    if policy.merges:  # README.md, section 3: a partial's own lse, and its sum, count too
        largest = (exponent * rows.visible).amax(1, keepdim=True)
        exponent = exponent + 3 * (largest + unit(policy.weights)) + 2 * policy.merges * unit(policy.lse) * level
        variance = 3 * variance + policy.merges * unit(policy.lse) ** 2 / 3 * level.square()
    return Scores(p, slope, top, terms, rescales, level, exponent, variance, error, alike, linked)


def largest(rows: Rows, found: Scores) -> tuple[Tensor, Tensor]:
    """Error and variance of a row's largest score, before it is stored (R,). No maximum is further off than a score;
    one of n scores is with a chance of at most n p: twice the variance for n to 1e6 (README.md, section 5)."""
    lost = torch.zeros_like(found.top) if rows.lost is None else torch.where(rows.lost, torch.inf, 0.0)
    error, variance = ((x * rows.visible).amax(1) for x in (found.score_error, 2 * found.variance))
    return error + lost[:, 0], variance + lost[:, 0]


def _linked(s: Tensor, p: Tensor, score: Tensor, rows: Rows, rescales: Tensor, policy: Policy) -> Linked:
    """The row's largest score has the exponent 0, and its weight is stored as 1 or as near to 1 as it is."""
    u = policy.u
    peak = s.masked_fill(rows.visible == 0, -torch.inf).amax(1, keepdim=True)
    below = (s < peak).double()
    own = u**2 / 3 * (1 + below * ((s - peak).square() + 2 * peak.square() + rescales))
    own += below * policy.exponential_variance
    near = ((1 - p) / p).square() + score + own
    weight = torch.full_like(p, unit(policy.weights) ** 2 / 3)
    return Linked(peak, score, own, torch.where(p > 0.5, weight.minimum(near), weight) * policy.weight_roundings)


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
    chain = (1 + grown(policy.chain(terms) + rescales + 4, u)) * (1 + grown(roundings, unit(policy.partial)))
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
    """Variances of out, lse, out alone, lse without its scores, and of what all of a row of out shares. depths: as
    `_below_peak` returns them, where every step of logsumexp may be stored in the format of lse."""
    u, short = policy.u, policy.weight_roundings * unit(policy.weights) ** 2 / 3
    square, v_square = found.p.square(), rows.v.square()
    each = u**2 / 12 * (policy.spread(found.terms) + found.rescales) + unit(policy.partial) ** 2 / 6 * roundings
    spread = square @ v_square + rows.out.square()
    link = found.linked
    moved = square * found.variance
    away = moved @ v_square - 2 * rows.out * (moved @ rows.v) + rows.out.square() * moved.sum(1, keepdim=True)
    own = each * spread + policy.cuts(square @ v_square, rows.out.square()) + 4 * u**2 * rows.out.square()
    rounded = short * (square @ v_square + policy.alike * rows.out.square())
    if link is not None:
        rounded = (square * link.weight) @ v_square
    last = half_spacing(rows.out, policy.dtype).square() / 3
    if link is not None:
        last = last.minimum(missed(rows.out, own + away.clamp(min=0.0) + rounded, policy))
    own += last
    own += flushed(rows.out, policy.dtype).square()
    least = underflow(policy.weights) ** 2 / 3
    own += least * (rows.visible @ v_square) if link is None else square.clamp(max=least) @ v_square
    own += policy.merges * unit(policy.partial) ** 2 * v_square.amax(0) + roundings * underflow(policy.partial) ** 2 / 3
    out = own + away.clamp_(min=0.0)  # of p_j (v_j - out): what all weights share leaves no error
    out += rounded
    shared = policy.through_lse * _through_lse(rows, found, policy)
    out += shared * rows.out.square()
    of_scores = moved.sum(1, keepdim=True)
    lse = of_scores + found.alike
    lse += u**2 / 12 * (found.terms + found.rescales + policy.logarithm**2)
    lse += policy.weight_roundings * unit(policy.normaliser) ** 2 / 3 * square.sum(1, keepdim=True)
    if link is None:
        lse += u**2 / 3 * (rows.lse.square() + found.top.square())
    else:
        lse += sum(half_spacing(x, policy.sums).square() for x in (rows.lse, link.peak)) * 2 / 3
    lse += policy.merges * unit(policy.lse) ** 2 / 3 * found.level.square()
    if depths is not None:
        apart, depth = depths
        lse += unit(policy.stored_lse) ** 2 / 3 * ((square * apart.square()).sum(1, keepdim=True) + depth.square())
    if link is None or policy.stored_lse != policy.sums:
        lse += half_spacing(rows.lse, policy.stored_lse).square() / 3
    return out, lse, own, lse - of_scores, shared


def _below_peak(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far scores are below the largest of their row (R, C), and how far that is below lse (R, 1)."""
    exponent = p.clamp(min=1e-300).log()
    peak = exponent.amax(1, keepdim=True)
    return (peak - exponent) * (p > 0), peak.abs()


def _through_lse(rows: Rows, found: Scores, policy: Policy) -> Tensor:
    """Variance of the factor by which all exp(s - lse) of a row are off: no division takes these roundings out."""
    own = policy.u**2 * (rows.lse.square() + found.top.square()) + half_spacing(rows.lse, policy.lse).square()
    return own / 3 + 2 * (found.p.square() * exponential_again(found.p, policy)).sum(1, keepdim=True)


def exponential_again(p: Tensor, policy: Policy) -> Tensor:
    """Variance of exp(s - lse): its argument's and its own."""
    argument = p.clamp(min=1e-300).log()
    return policy.u**2 / 3 * argument.square() + policy.exponential_variance


def missed(x: Tensor, variance: Tensor, policy: Policy) -> Tensor:
    """Square of the largest error of storing x, `SURE` deviations off before: rounding is monotone."""
    off = SURE * variance.sqrt() + REFERENCE_ERROR * x.abs()
    ends = torch.stack([x + off, x - off])
    unit_there = spacing(ends, policy.dtype)
    return ((ends / unit_there).round() * unit_there - x).square().amax(0)
