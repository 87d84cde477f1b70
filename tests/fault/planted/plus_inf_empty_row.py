"""A row without keys has lse = +inf, as flash-attention 2 gives it: it outweighs every other partial, and out is 0.

flash-attention 2 v 3, flash-attention PR #978.
"""

import torch
from torch import Tensor

from tests.fault.planted.base import HiddenBlocks, merged_by

EXPECTED = {"out": "logic"}


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Guarded against empty partials, as long as log 0 is -inf."""
    joint = torch.logaddexp(lse, block_lse)
    weight, block_weight = (torch.exp(each - joint).nan_to_num(nan=0.0) for each in (lse, block_lse))
    return weight * out + block_weight * block_out, joint


SCHEDULE = merged_by(merge, HiddenBlocks(empty_lse=torch.inf))
