"""Sums of products as tensor cores have them: in float32, in fewer bits, or rounded to float16 on the way.

In fewer bits either the sum of 32 products is cut off at the accumulator's last bit, or, as Hopper's core does in 8
bits (arXiv 2511.10909), each of those products before they are added. The latter depends on the exponents of codes, so
operands then come as codes, with the scale apart.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.quantisation import ELEMENTS, FLOAT32_BITS, FORMATS, STEP, Policy
from accuracy.runtime import rounding as casts
from accuracy.runtime.rounding import power_of_two

NOTHING = -90
"""The exponent of 0: below all that is added."""
AT_ONCE = 2**22
"""Products that are held."""


@dataclass(frozen=True)
class Factor:
    """An operand of a product (..., M, K): values, or codes and the scale (..., 1, 1) that they are to be multiplied
    by. least: the smallest exponent of its format."""

    values: Tensor
    scale: Tensor | float = 1.0
    least: int = NOTHING

    def rows(self, part: slice) -> "Factor":
        """Some of the rows."""
        return Factor(self.values[..., part, :], self.scale, self.least)

    @property
    def mT(self) -> "Factor":
        """Transposed."""
        return Factor(self.values.mT, self.scale, self.least)

    def step(self, part: slice) -> "Factor":
        """Some of the terms of the sum, of a left operand."""
        return Factor(self.values[..., part], self.scale, self.least)

    @property
    def exponents(self) -> Tensor:
        """The codes' exponents, int32; those of subnormal codes are the smallest."""
        found = torch.frexp(self.values).exponent.sub_(1).clamp_(min=self.least)
        return found.masked_fill_(self.values == 0, NOTHING)


def factor(
    x: Tensor, word: str, policy: Policy, axis: int = -1, largest: Tensor | None = None, by_half: bool = False
) -> Factor:
    """x (..., S, D) cast, by the policy's scales; by_half: from float16; other arguments as of `quantise`."""
    form = FORMATS.get(word)
    if not (policy.cut_products or by_half) or form is None or not form.scaled:
        return Factor(casts.quantise(x, word, policy, axis, largest))
    scale = casts.scales_of(x, form, policy, casts.shared_by(x, policy), largest)
    codes = x / torch.where(scale == 0, 1.0, scale)
    if by_half:
        codes = codes.half().to(x.dtype)
    return Factor(casts.round_to_format(codes, form), scale, form.min_exponent)


def factor_of_weights(weights: Tensor, policy: Policy, axis: int = -1) -> Factor:
    """Weights of the softmax (..., rows, keys) cast, by the prescale, or by scales of what is in them."""
    form = FORMATS.get(policy.p)
    if form is None or not form.scaled or policy.p_prescale == 0 or policy.granularity in ELEMENTS:
        return Factor(casts.quantise(weights, policy.p, policy, axis))
    codes = casts.round_to_format(weights * policy.p_prescale, form)
    if policy.cut_products:
        return Factor(codes, 1 / policy.p_prescale, form.min_exponent)
    return Factor(codes.div_(policy.p_prescale))


@dataclass
class Sum:
    """The sum of products that a tensor core keeps: `partial` in the accumulator's bits, `total` in float32."""

    policy: Policy
    total: Tensor
    partial: Tensor | None = None
    terms: int = 0
    scale: Tensor | float = 1.0

    def add(self, rows: slice, left: Factor, right: Factor) -> None:
        """left (..., rows, K) times right (..., K, N) on top of the rows (..., rows, N)."""
        policy = self.policy
        if policy.accumulator_bits == FLOAT32_BITS:
            added = _in_halves(left.values, right.values, policy.half_terms)
            self.total[..., rows, :] += added.mul_(left.scale * right.scale)
            return
        if self.partial is None:
            self.partial = torch.zeros_like(self.total)
        self.scale = left.scale * right.scale
        cut = _cut_each if policy.cut_products else _cut_sum
        length, begin = left.values.shape[-1], 0
        while begin < length:
            left_over = policy.flush_interval - self.terms if policy.flush_interval else length
            run = slice(begin, min(begin + left_over, length))
            total = self.partial[..., rows, :]
            total.copy_(cut(total, left.step(run), right.rows(run), policy.accumulator_bits))
            begin = run.stop
            self.terms += STEP * math.ceil((run.stop - run.start) / STEP)
            if policy.flush_interval and self.terms >= policy.flush_interval:
                self.flush()

    def flush(self) -> None:
        """Move what the accumulator holds into float32."""
        if self.partial is not None:
            self.total += self.partial * self.scale
            self.partial.zero_()
        self.terms = 0

    def rescale(self, rows: slice, factor: Tensor) -> None:
        """Registers are float32: a factor of each row (..., rows, 1) rounds nothing that matters here."""
        self.total[..., rows, :] *= factor
        if self.partial is not None:
            self.partial[..., rows, :] *= factor

    def value(self) -> Tensor:
        """Flush, and return the sum of all that was added."""
        self.flush()
        return self.total


def product(policy: Policy, left: Factor, right: Factor) -> Tensor:
    """left (..., M, K) times right (..., K, N) with an accumulator of its own."""
    if policy.accumulator_bits == FLOAT32_BITS:
        return (left.values @ right.values).mul_(left.scale * right.scale)
    batch = torch.broadcast_shapes(left.values.shape[:-2], right.values.shape[:-2])
    total = Sum(policy, left.values.new_zeros(*batch, left.values.shape[-2], right.values.shape[-1]))
    total.add(slice(None), left, right)
    return total.value()


def _in_halves(left: Tensor, right: Tensor, terms: int) -> Tensor:
    """The product of a tile, its sum rounded to float16 after every so many terms; 0: never."""
    if not terms:
        return left @ right
    total = torch.zeros((), dtype=left.dtype, device=left.device)
    for begin in range(0, left.shape[-1], terms):
        step = slice(begin, begin + terms)
        total = (total + left[..., step] @ right[..., step, :]).half().to(left.dtype)
    return total


def _steps(left: Factor, right: Factor) -> Iterator[tuple[Factor, Factor]]:
    """The terms that a tensor core adds at once."""
    for begin in range(0, left.values.shape[-1], STEP):
        yield left.step(slice(begin, begin + STEP)), right.rows(slice(begin, begin + STEP))


def _cut_sum(total: Tensor, left: Factor, right: Factor, bits: int) -> Tensor:
    """Add each step's sum to the sum so far: both are aligned to the larger exponent and cut off below `bits`."""
    for one, other in _steps(left, right):
        added = one.values @ other.values
        exponent = torch.frexp(torch.maximum(total.abs(), added.abs())).exponent.clamp_(min=NOTHING) - bits
        unit = power_of_two(exponent, total.dtype)
        total = ((total / unit).trunc_() + (added / unit).trunc_()) * unit
    return total


def _cut_each(total: Tensor, left: Factor, right: Factor, bits: int) -> Tensor:
    for one, other in _steps(left, right):
        total = _cut_step(total, one, other, bits)
    return total


def _cut_step(total: Tensor, left: Factor, right: Factor, bits: int) -> Tensor:
    """Add up to 32 products to the sum so far (..., M, N): all are aligned to the largest exponent (a product's is its
    factors' sum) and cut off below `bits`, and so is what they add up to."""
    found = torch.empty_like(total)
    others, those = right.values.unsqueeze(-3), right.exponents.unsqueeze(-3)
    size = max(1, AT_ONCE * total.shape[-2] // (total.numel() * left.values.shape[-1]))
    for begin in range(0, total.shape[-2], size):
        rows = slice(begin, begin + size)
        some, before = left.rows(rows), total[..., rows, :]
        exponent = (some.exponents.unsqueeze(-1) + those).amax(-2)
        exponent = torch.maximum(exponent, _exponent(before)).clamp_(-100, 100)
        unit = power_of_two(exponent - (bits - 1), total.dtype)
        products = some.values.unsqueeze(-1) * others
        added = products.div_(unit.unsqueeze(-2)).trunc_().sum(-2)
        found[..., rows, :] = _to_bits((added + (before / unit).trunc_()) * unit, bits)
    return found


def _exponent(x: Tensor) -> Tensor:
    return torch.frexp(x).exponent.sub_(1).masked_fill_(x == 0, NOTHING)


def _to_bits(x: Tensor, bits: int) -> Tensor:
    """x cut off to so many significant bits."""
    unit = power_of_two(_exponent(x).clamp_(-100, 100) - (bits - 1), x.dtype)
    return (x / unit).trunc_() * unit
