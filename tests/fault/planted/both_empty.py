"""Two partials without keys are merged: exp(-inf - (-inf)) is NaN, and out stays NaN.

vLLM #39148, flashinfer #4051.
"""

import torch
from torch import Tensor

from tests.fault.planted.base import HiddenBlocks, merged_by

EXPECTED = {"out": "invalid"}


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Right but where both are empty."""
    joint = torch.logaddexp(lse, block_lse)
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out, joint


SCHEDULE = merged_by(merge, HiddenBlocks())
