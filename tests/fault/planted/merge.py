"""Two partials are joined by wrong weights, or the joint lse is not that of both."""

import torch
from torch import Tensor

from tests.fault.planted.base import EVERYTHING, Fault, merged_by


def swapped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Each partial has the other's weight."""
    weight = torch.sigmoid(lse - block_lse)
    return out - weight * (out - block_out), torch.logaddexp(lse, block_lse)


def larger(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """lse becomes the larger of the two."""
    weight = torch.sigmoid(block_lse - lse)
    return out - weight * (out - block_out), torch.maximum(lse, block_lse)


def kept(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """lse stays that of the first partial."""
    weight = torch.sigmoid(block_lse - lse)
    return out - weight * (out - block_out), lse.clone()


def mean(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Both weigh the same."""
    return (out + block_out) / 2, torch.logaddexp(lse, block_lse)


def clipped(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """exp without its maximum: overflows in float16 beyond 11, in float32 beyond 88."""
    one, other = torch.exp(lse), torch.exp(block_lse)
    return (one * out + other * block_out) / (one + other), torch.log(one + other)


MERGE = ("merge",)
PARTS = {
    "merge_swapped": Fault(merged_by(swapped), "out dq dk", causes=MERGE),
    "merge_lse_larger": Fault(merged_by(larger), EVERYTHING, causes=MERGE),
    "merge_lse_kept": Fault(merged_by(kept), EVERYTHING, causes=MERGE),
    "merge_mean": Fault(merged_by(mean), "out dq dk", causes=MERGE),
    "merge_without_maximum": Fault(merged_by(clipped), EVERYTHING, causes=MERGE),
}
