"""In how many significant bits a tensor is exact: fewer than its dtype has, where somebody rounded it on its way."""

import numpy as np
import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.measurement.metrics import Array

SAMPLE = 256
"""Elements of a rank, about: in a tensor with all of its bits, none of 171 to 511 has the last one with a chance of
2^-171 at most."""


def significand_bits(x: Tensor, dtype: str | None) -> Array:
    """The fewest significant bits in which every value of a rank's shard x (W, ...) is exact: (W,); 0 where all are
    zero. dtype: in which x is stored; x may be wider; None: x is not stored.

    A tensor that somebody rounded to bfloat16 on its way has 8, whatever dtype it is stored in. Mostly a few elements
    show that all bits of the tensor's dtype are in use, and no others need be looked at.
    """
    flat = x.flatten(1)
    if dtype is not None:
        few = _bits(flat[:, :: flat.shape[1] // SAMPLE | 1])  # an odd step: of many dimensions of a head
        if (few == FORMATS[dtype].precision).all():
            return few
    return _bits(flat)


def _bits(flat: Tensor) -> Array:
    """53 less the zeros behind the lowest bit of all significands, of which each has 53: (W,)."""
    mantissa, _ = torch.frexp(flat.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    whole = (mantissa * 2.0**53).long()
    lowest = (whole & -whole).masked_fill_(whole == 0, 2**53).amin(1).double()
    return 54 - np.frexp(lowest.cpu().numpy())[1]  # the exponent is 1 + trailing zeros
