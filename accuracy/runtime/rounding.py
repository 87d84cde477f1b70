"""Rounding float64 to a shorter format once, and how far apart a format's numbers are.

torch goes to 16 bits by way of float32 and so rounds twice.
"""

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS


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
    form = FORMATS[dtype]
    digits = form.precision - 1
    powers = torch.empty_like(x) if out is None else out
    torch.bitwise_and(x.view(torch.int64), EXPONENT, out=powers.view(torch.int64))  # 2^e <= |x|; 0: below 2^-1022
    return powers.mul_(2.0**-digits).clamp_(2.0 ** (form.min_exponent - digits), 2.0 ** (1023 - digits))


EXPONENT = 0x7FF0000000000000
"""The bits of a float64's exponent."""
