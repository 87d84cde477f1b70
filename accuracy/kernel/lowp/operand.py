"""A tensor as a kernel of 8 bits reads it: its codes and their scales."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.runtime.rounding import scales_of

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Operand:
    """codes: (B, H, S, D), contiguous; scales: (B, H, n), float32, each of as many tokens."""

    codes: Tensor
    scales: Tensor

    @property
    def by_token(self) -> Tensor:
        """The codes as (B, S, H, D)."""
        return self.codes.transpose(1, 2)


def cast(x: Tensor, word: str, policy: Policy) -> Operand:
    """x (B, S, H, D) in the format of a name, by scales of the tensor, a head or a block of tokens."""
    rows, form = x.transpose(1, 2), FORMATS[word]
    tokens = policy.block if policy.granularity == "block" else rows.shape[2]
    parts = rows.abs().amax(-1).float()
    most = torch.nn.functional.pad(parts, (0, -parts.shape[2] % tokens)).unflatten(2, (-1, tokens)).amax(-1)
    most = most.amax() if policy.granularity == "tensor" else most
    scales = scales_of(rows, form, policy, (), most)
    per_head = scales.expand(*rows.shape[:2], most.shape[-1] if most.ndim else 1).contiguous()
    divisors = torch.where(per_head == 0, 1.0, per_head)
    spread = divisors.repeat_interleave(tokens, 2)[:, :, : rows.shape[2], None]
    return Operand((rows.float() / spread).to(DTYPES[word]).contiguous(), per_head)
