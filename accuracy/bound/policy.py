"""Where an implementation is taken to round, and to what: the assumptions under which a bound holds.

Every operation rounds to nearest in a stated format. The looser the policy, the more implementations it covers; the
bound of a function that nobody here wrote is that of `loosest`.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from accuracy.core.dtype import ARITHMETIC, FORMATS, Format, accumulation_dtype
from accuracy.runtime.rounding import spacing

SMALLEST_TILE = 16
"""Keys after which an online softmax rescales what it has, at the soonest."""
FAST_EXPONENTIAL = 2048.0
"""Unit roundoffs of float32 by which exp of torch's flash kernel on a CPU errs at most for 16-bit inputs (measured on
20,000 arguments from -20 to 0: 1,762; vectorised, on 763 from -3 to 0: 1,935, root mean square 898, mean 47)."""
SHARE_OF_MEAN = 1 / 200
"""Of the mean square of its errors, that of their mean: (65 / 916)^2."""
COARSE_LOGARITHM = 48.0
"""Unit roundoffs by which a library's log errs at most; torch's on a CPU is off by 25 (measured)."""
EIGHT_BITS = {"float8_e4m3fn": Format("float8_e4m3fn", 4, -6, 1), "float8_e5m2": Format("float8_e5m2", 3, -14, 1)}
OF_FLOAT32 = ("tf32_cut", "tf32", "split_16")
"""To what operands of float32 products may be rounded, the coarsest first. Cut off they lose up to a spacing; three
products of bfloat16 parts leave out the product of both small parts, and these are rounded: 3 * 2^-18 in all."""
INSIDE = FORMATS | EIGHT_BITS | {name: ARITHMETIC[name] for name in OF_FLOAT32}
"""Formats of what is rounded inside; no result is stored in those of products or in 8 bits."""


@dataclass(frozen=True)
class Policy:
    """Names of formats. dtype: of inputs and results; sums: of dot products, exponentials and sums within a tile;
    products: to which scores, dP, delta and a scaled q are rounded; weights: to which P and dS are rounded before they
    are multiplied, `weight_roundings` times; normaliser: to which P is rounded where it is summed; lse: of lse where
    partials are merged and where the backward reads it; stored_lse: of the lse that is returned; partial: of what
    pieces give, and of their running sums.

    pieces: in which keys and rows are dealt with one after another (ranks, chunks); forward_tile, gradient_tile: keys
    or rows after which a running sum is rounded to `partial` within a piece, None: never; exponential, logarithm:
    largest relative errors of exp and log, in unit roundoffs of sums; alike: whether the weights of a row may all be
    rounded alike, as equal ones are; by_head: whether dk and dv of query heads that share keys are rounded before they
    are added; by_lse: whether out may be sum exp(s - lse) v with a stored lse instead of divided by its sum; casts:
    whether q, k, v and dout are rounded to `products` first (autocast, TF32).
    """

    dtype: str
    sums: str
    products: str
    weights: str
    normaliser: str
    lse: str
    stored_lse: str
    partial: str
    weight_roundings: int = 1
    pieces: int = 1
    forward_tile: int | None = None
    gradient_tile: int | None = None
    exponential: float = 4.0
    logarithm: float = 4.0
    alike: bool = False
    by_head: bool = False
    by_lse: bool = False
    casts: bool = False

    @property
    def u(self) -> float:
        """Unit roundoff of sums."""
        return FORMATS[self.sums].unit_roundoff

    @property
    def exponential_variance(self) -> float:
        """Variance of exp's relative error: a polynomial's, E^2 / 5 for a largest one of E (README.md, section 5)."""
        return (self.exponential * self.u) ** 2 / 5

    @property
    def merges(self) -> int:
        """How often a partial is joined to another."""
        return self.pieces - 1

    @property
    def through_lse(self) -> bool:
        """Whether out is off by the rounding of an lse: its own, or those by which its parts are merged."""
        return self.by_lse or self.merges > 0

    def roundings(self, terms: Tensor, way: str) -> Tensor:
        """How many roundings to `partial` a running sum of so many terms sees, beside the last one."""
        tile = self.forward_tile if way == "forward" else self.gradient_tile
        return 2.0 * self.merges + (torch.zeros_like(terms) if tile is None else 2 * (terms / tile).ceil())


def kernel(dtype: str, **changes: object) -> Policy:
    """A fused kernel on one device: float32 inside (float64 for float64), P and dS rounded to the inputs' dtype. In
    float64 the reference errs as much, and that normalises by its lse."""
    sums = accumulation_dtype(dtype)
    plain = {"sums": sums, "products": sums, "weights": dtype, "normaliser": sums, "lse": sums, "stored_lse": sums}
    known = {"dtype": dtype, "partial": dtype, "by_lse": dtype == "float64"}
    return Policy(**(known | plain | changes))  # type: ignore[arg-type]


def loosest(dtype: str, pieces: int = 1, stored_lse: str | None = None) -> Policy:
    """What a function that nobody here wrote may do and still be called rounding: scores, weights, lse, delta and dS
    are stored in the inputs' dtype; running sums are rounded to it after 128 keys of the forward and 32 rows or keys of
    the backward (torch's flash kernel on a CPU does the latter), and between pieces; out may be normalised by lse."""
    sums = accumulation_dtype(dtype)
    return Policy(
        dtype, sums, products=dtype, weights=dtype, normaliser=dtype, lse=dtype, stored_lse=stored_lse or sums,
        partial=dtype, weight_roundings=2, pieces=pieces, forward_tile=128, gradient_tile=32,
        exponential=FAST_EXPONENTIAL if sums != dtype else 8.0, logarithm=COARSE_LOGARITHM, alike=True, by_head=True,
        by_lse=True,
    )  # fmt: skip


def cast(policy: Policy, to: str) -> Policy:
    """Return the policy with every matrix product's operands rounded to `to`."""
    return replace(policy, products=to, weights=to, weight_roundings=policy.weight_roundings + 1, casts=True)


def eight_bits(policy: Policy, values: str) -> Policy:
    """Return the policy of a function that gets tensors in 8 bits and their scales, which are exact inputs then: P is
    rounded once, to e4m3 where v has 8 bits, before it is multiplied or summed."""
    weights = "float8_e4m3fn" if values in EIGHT_BITS else policy.weights
    return replace(policy, weight_roundings=1, weights=weights, normaliser=weights)


POLICIES = {"kernel": kernel, "loosest": loosest}


def unit(name: str) -> float:
    """Unit roundoff of a format."""
    return INSIDE[name].unit_roundoff


def underflow(name: str) -> float:
    """Largest absolute error of rounding what is below a format's normal numbers; where those are flushed to zero, all
    of it, as float32 and bfloat16 are on some devices."""
    form = INSIDE[name]
    gradual = name == "float16" or name in EIGHT_BITS  # no device flushes those
    return math.ldexp(1.0, form.min_exponent - (form.precision if gradual else 0))


def flushed(x: Tensor, dtype: str) -> Tensor:
    """What is lost of x (float64) where numbers below the normal ones are stored as zero; float16 keeps those."""
    most = 0.0 if dtype == "float16" else math.ldexp(1.0, FORMATS[dtype].min_exponent)
    return x.abs().where(x.abs() < most, 0.0)


def tiny_weights(p2: Tensor, off2: Tensor, policy: Policy) -> Tensor | float:
    """Variance that dS = P (dP - delta) slope gets where P is stored before and is below its format's normal numbers,
    whose spacing is absolute; p2, off2: squares of P and of (dP - delta) slope."""
    return 0.0 if policy.weight_roundings == 1 else p2.clamp(max=underflow(policy.weights) ** 2 / 3).mul_(off2)


def grown(count: Tensor | float, u: float) -> Tensor | float:
    """gamma_n = n u / (1 - n u): relative error of a sum of n terms, or of n roundings one on another (Higham 2002,
    lemma 3.1). Beyond n u = 1/2 there is no bound."""
    size = torch.as_tensor(count, dtype=torch.float64) * u
    return torch.where(size < 0.5, size / (1 - size), torch.inf)


def half_spacing(x: Tensor, dtype: str) -> Tensor:
    """Half the distance of neighbouring numbers at x (float64): the largest error of rounding it to nearest."""
    return spacing(x, dtype) / 2
