"""Rounding float64 to a shorter format once. torch goes to 16 bits by way of float32 and so rounds twice."""

import torch
from torch import Tensor


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
