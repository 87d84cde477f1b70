"""Rounding float64 to a dtype once, and to a low-precision format by scales that bring values into its range, emulated
in float32 or float64.

torch goes from float64 to 16 bits by way of float32 and so rounds twice. Tensors of the emulation are head-first, (...,
S, D): tokens and elements of a head last. What it gives back is in the given tensor's dtype.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS as DTYPES
from accuracy.core.quantisation import ELEMENTS, FORMATS, LowFormat, Policy

EXPONENT = 0x7FF0000000000000
"""The bits of a float64's exponent."""


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x (float64) rounded to nearest, ties to even, in one rounding.

    For 16-bit formats float32 is reached by rounding to odd, which keeps what the last rounding must know: that
    something was cut off (Boldo and Melquiond 2008; float32 has more than two bits to spare).
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return x.to(dtype)
    near = x.float()
    wide = near.double()
    bits = near.view(torch.int32)
    toward_zero = bits - (wide.abs() > x.abs()).int()
    odd = (toward_zero | (wide != x).int()).view(torch.float32)
    return torch.where(near.isfinite(), odd, near).to(dtype)


def spacing(x: Tensor, dtype: str, out: Tensor | None = None) -> Tensor:
    """The distance of neighbouring numbers of `dtype` next to x (float64); of its largest where x is not finite."""
    form = DTYPES[dtype]
    digits = form.precision - 1
    powers = torch.empty_like(x) if out is None else out
    torch.bitwise_and(x.view(torch.int64), EXPONENT, out=powers.view(torch.int64))  # 2^e <= |x|; 0: below 2^-1022
    return powers.mul_(2.0**-digits).clamp_(2.0 ** (form.min_exponent - digits), 2.0 ** (1023 - digits))


def round_to_format(x: Tensor, form: LowFormat) -> Tensor:
    """x (float32 or float64) to the nearest value of the format, ties to even; beyond its largest one, infinities too,
    that one; NaN stays."""
    if not form.scaled:
        return x.clamp(-form.largest, form.largest).to(getattr(torch, form.name)).to(x.dtype)
    inside = x.clamp(-form.largest, form.largest)
    exponent = torch.frexp(inside).exponent.sub_(1).clamp_(min=form.min_exponent).sub_(form.precision - 1)
    spacing = power_of_two(exponent, x.dtype)
    return (inside / spacing).round_().mul_(spacing)


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent (int32, a normal number's) in float32 or float64, exactly."""
    if dtype == torch.float32:
        return ((exponent + 127) << 23).view(dtype)
    return ((exponent.long() + 1023) << 52).view(dtype)


def quantise(x: Tensor, word: str, policy: Policy, axis: int = -1, largest: Tensor | None = None) -> Tensor:
    """x (..., S, D) through the format and back, by the policy's scales. axis: -1 or -2, along which blocks of elements
    lie: the one that the product sums over; largest: of more than x, where x is a part of what shares a scale."""
    form = FORMATS.get(word)
    if form is None:
        return x
    if not form.scaled:
        return round_to_format(x, form)
    if policy.granularity in ELEMENTS:
        return _in_parts(x, axis, ELEMENTS[policy.granularity], lambda parts, dim: _scaled(parts, form, policy, (dim,)))
    if policy.granularity == "block":
        return _in_parts(x, -2, policy.block, lambda parts, dim: _scaled(parts, form, policy, (dim, -1)))
    return _scaled(x, form, policy, shared_by(x, policy), largest)


def shared_by(x: Tensor, policy: Policy) -> tuple[int, ...]:
    """Dimensions of x (..., S, D) over which a scale of a tensor, a head or a token is shared."""
    return {"tensor": tuple(range(x.dim())), "head": (-2, -1), "token": (-1,)}[policy.granularity]


def by_heads(x: Tensor, form: LowFormat) -> Tensor:
    """x (B, S, heads, D) through the format and back, in x's dtype, by a float32 scale of each head of a sequence."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return _by_scale(wide, form, wide.abs().amax((1, 3), keepdim=True) / form.largest).to(x.dtype)


def power_of_two_scaled(x: Tensor, form: LowFormat) -> Tensor:
    """x through the format and back, by one power of two for the tensor that brings its largest value into range."""
    return _by_scale(x, form, _power_of_two_above(x.abs().amax() / form.largest))


def _in_parts(x: Tensor, axis: int, size: int, change: Callable[[Tensor, int], Tensor]) -> Tensor:
    """x cut along an axis into parts of `size`, the last one shorter, each changed by itself; dim: of a part."""
    length = x.shape[axis]
    missing = -length % size
    padded = torch.nn.functional.pad(x, (0, missing) if axis == -1 else (0, 0, 0, missing))
    place = x.dim() + axis
    parts = padded.unflatten(place, (-1, size))
    return change(parts, place + 1 - parts.dim()).flatten(place, place + 1).narrow(place, 0, length)


def _scaled(
    x: Tensor, form: LowFormat, policy: Policy, shared: tuple[int, ...], largest: Tensor | None = None
) -> Tensor:
    """shared: dimensions over which a scale is shared."""
    return _by_scale(x, form, scales_of(x, form, policy, shared, largest))


def scales_of(
    x: Tensor, form: LowFormat, policy: Policy, shared: tuple[int, ...], largest: Tensor | None = None
) -> Tensor:
    """What x is divided by, its shared dimensions 1; 0 where x is 0."""
    scale = (x.abs().amax(shared, keepdim=True) if largest is None else largest) / form.largest
    if policy.scale_format == "e8m0":
        scale = _power_of_two_above(scale)
    if policy.scale_format == "e4m3":
        whole = x.abs().amax() / (form.largest * FORMATS["e4m3"].largest)
        whole = torch.where(whole > 0, whole, 1.0)
        scale = round_to_format(scale / whole, FORMATS["e4m3"]) * whole
    return scale


def _by_scale(x: Tensor, form: LowFormat, scale: Tensor) -> Tensor:
    divisor = torch.where(scale == 0, 1.0, scale)  # 0: of zeros, or of less than the scale's own format can say
    return round_to_format(x / divisor, form).mul_(scale)


def _power_of_two_above(x: Tensor) -> Tensor:
    """As e8m0 has it: 2^-126 to 2^127 (its 2^-127 is no normal number of float32); 0 of 0."""
    mantissa, exponent = torch.frexp(x)
    exponent = (exponent - (mantissa == 0.5).to(exponent.dtype)).clamp_(-126, 127)
    return torch.where(x == 0, 0.0, power_of_two(exponent, x.dtype))


@cache
def rotation(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A random orthogonal matrix (width, width): signs, then Hadamard matrices of the largest power of two that divides
    the width, side by side."""
    size = width & -width
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(2, (width, 1), generator=torch.Generator().manual_seed(width)) * 2.0 - 1.0
    whole = torch.block_diag(*[matrix / math.sqrt(size)] * (width // size))
    return (signs * whole).to(device, dtype)
