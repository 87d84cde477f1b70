"""A tensor as a kernel of 8 bits reads it: its codes and their scales."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.runtime.rounding import scales_of

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Operand:
    """codes: (B, H, S, D), contiguous; scales: (B, H, 1), float32."""

    codes: Tensor
    scales: Tensor

    @property
    def by_token(self) -> Tensor:
        """The codes as (B, S, H, D)."""
        return self.codes.transpose(1, 2)


def cast(x: Tensor, word: str, policy: Policy) -> Operand:
    """x (B, S, H, D) in the format of a name, by a scale of the tensor or of each head."""
    rows = x.transpose(1, 2)
    most = rows.abs().amax((-2, -1)).float().unsqueeze(-1)
    most = most.amax() if policy.granularity == "tensor" else most
    scales = scales_of(rows, FORMATS[word], policy, (), most).expand(*rows.shape[:2], 1).contiguous()
    divisors = torch.where(scales == 0, 1.0, scales).unsqueeze(-1)
    return Operand((rows.float() / divisors).to(DTYPES[word]).contiguous(), scales)
