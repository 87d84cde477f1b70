"""lse + log(1 + exp(block_lse - lse)) overflows where block_lse is 88.7 above lse, in float32 (709 in float64).

EasyContext #14, ring-flash-attention #30 and #34, TransformerEngine #716.
"""

import torch
from torch import Tensor

from tests.fault.planted.base import merged_by

EXPECTED = {"out": "invalid", "lse": "invalid"}


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The formula before ring-flash-attention #34."""
    joint = lse + torch.log(1 + torch.exp(block_lse - lse))
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out, joint


SCHEDULE = merged_by(merge)
