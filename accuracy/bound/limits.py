"""How far may a test let a tensor be from float64? Limits out of running bounds, and what is beyond them, in words.

A tensor is judged four ways, each with a chance of at most `ALARM` that rounding alone goes beyond: its elements, its
rows (token and head), all of it (relative Frobenius norm), and its gain, the factor that it is of the reference.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy.bound.running import Bound
from accuracy.core.dtype import FORMATS

ALARM = 1e-6
DEPENDENT = 8
"""Errors of a row, or of rows, count as one eighth as many independent ones: they share lse, delta and keys."""
MOST = 4
"""Independent errors of a row at most, however wide it is: those of lse, of delta and of the scores of the keys that
have its weight, each times a vector. (256 dims count as 32 independent errors without it, and one in four float32
softmaxes of 64 Gaussian tokens was refused.)"""
DRIFT = {2: 1.0, 4: 16.0, 8: 16.0}
"""By a format's bytes, unit roundoffs by which rounding may shift a gain. A result rounded once to nearest shifts it by
at most one, also where all of its elements are equal; in float32 and float64 sums, exp and log are biased themselves
(`accuracy.verdict.rule.factor` has the measured gains: up to 0.08 in 16-bit formats, 0.3 in float32)."""
CANCELLED = 8.0
"""Where sums cancel, what rows share (a sink's value, lse) shifts a gain by this part of the relative limit at most."""
STANDARD_ERRORS, FEWEST = 6.0, 32
"""By so many a gain may exceed `DRIFT`; in fewer rows each is a guess (Student's t with 31 degrees: 6 are 1e-6)."""


@dataclass(frozen=True)
class Limits:
    """element: of each element's |error|, in the tensor's shape; row: of the root mean square of each row's, without
    the last dimension; relative: of the norm of the error over the reference's; drift: of |gain| beyond its standard
    errors, infinite where the reference has no digits."""

    element: Tensor
    row: Tensor
    relative: float
    drift: float


@dataclass(frozen=True)
class Beyond:
    """One way in which a tensor is out of its limits. times: its error over the limit; place: of the worst."""

    what: str
    error: float
    limit: float
    place: tuple[int, ...]

    @property
    def times(self) -> float:
        """Infinite for what is not finite."""
        return self.error / self.limit if self.limit else math.inf


def limits(bound: Bound, reference: Tensor, dtype: str, by_row: bool = True, least_drift: float = 0.0) -> Limits:
    """Return the limits of a tensor stored in `dtype`. by_row: whether its last dimension is a row (lse has none);
    least_drift: by which its gain may be shifted in any case."""
    variance, count = bound.variance, reference.numel()
    norm = float(reference.norm())
    width = reference.shape[-1] if by_row else 1
    varies = variance.mean(-1).sqrt() * reach(independent(width), count / width)
    row = varies if by_row else variance.sqrt() * math.inf
    total = math.sqrt(float(variance.sum())) * reach(count / width / DEPENDENT, 1)
    relative = min(total, float(bound.certain.norm())) / norm if norm else math.inf
    form = FORMATS[dtype]
    least = max(DRIFT[form.bytes] * form.unit_roundoff, least_drift)
    drift = max(least, relative / CANCELLED) if relative < 1 else math.inf
    return Limits(bound.likely(ALARM / count), row, relative, drift)


def independent(width: int) -> float:
    """Return as how many independent errors those of a row of `width` elements count."""
    return min(width / DEPENDENT, MOST)


def gain(x: Tensor, reference: Tensor) -> tuple[float, float]:
    """<x, reference> / <reference, reference> - 1 and its standard error, rows taken as independent (White 1980);
    infinite for few rows."""
    products, norms = ((each * reference).sum(-1) for each in (x - reference, reference))
    total = float(norms.sum())
    if not total or norms.numel() < FEWEST:
        return 0.0, math.inf
    found = float(products.sum()) / total
    return found, float((products - found * norms).norm()) / total


def reach(independent: float, events: float) -> float:
    """By what a norm exceeds its root mean square with a chance of `ALARM` over so many events, of a vector with so
    many independent sub-Gaussian components (Hsu, Kakade and Zhang 2012, theorem 2.1)."""
    t = math.log(events / ALARM) / max(1.0, independent)
    return math.sqrt(1 + 2 * math.sqrt(t) + 2 * t)


def beyond(x: Tensor, reference: Tensor, allowed: Limits) -> list[Beyond]:
    """List the ways in which x, of the reference's shape, is out of its limits."""
    rows = x.dim() > allowed.row.dim()
    factor, uncertain = gain(x, reference) if rows else gain(x[..., None], reference[..., None])
    error = (x - reference).nan_to_num_(nan=torch.inf).abs_().masked_fill_(x == reference, 0.0)
    if error.max() == torch.inf:
        return [_worst("is not finite", error, torch.ones_like(error))]
    norm = float(reference.norm())
    every = (
        _worst("element", error, allowed.element),
        _worst("row", error.square().mean(-1).sqrt(), allowed.row) if rows else None,
        Beyond("relative", float(error.norm()) / norm, allowed.relative, ()) if norm else None,
        Beyond("gain", abs(factor), allowed.drift + STANDARD_ERRORS * uncertain, ()),
    )
    return [each for each in every if each is not None and each.error > each.limit]


def _worst(what: str, error: Tensor, limit: Tensor) -> Beyond:
    times = (error / limit).masked_fill_(error == 0, 0.0)
    place = tuple(int(each) for each in np.unravel_index(int(times.argmax()), tuple(error.shape)))
    return Beyond(what, float(error[place]), float(limit[place]), place)
