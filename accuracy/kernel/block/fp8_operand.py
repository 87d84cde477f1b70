"""A tensor as an FP8 tensor core reads it: codes, the codes transposed for products over tokens, and their scales.

A Hopper tensor core takes the right factor of an 8-bit product along the sum only, where a 16-bit one takes either
order: v in the forward, q, k and dout in the backward are copied transposed.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.runtime.quantise import rotation, scales_of

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ALIGNED = 16
"""Tokens that a transposed copy's rows are a multiple of, so that 16 bytes are loaded at once."""


@dataclass(frozen=True)
class Operand:
    """codes: (B, H, S, D), contiguous; scales: (B, H, n), float32, each of `tokens` tokens."""

    codes: Tensor
    scales: Tensor
    tokens: int

    @property
    def by_token(self) -> Tensor:
        """The codes as (B, S, H, D)."""
        return self.codes.transpose(1, 2)

    @cached_property
    def transposed(self) -> Tensor:
        """(B, H, D, S'), contiguous, S' = S up to a multiple of `ALIGNED`; what is added is 0."""
        missing = -self.codes.shape[2] % ALIGNED
        bits = torch.nn.functional.pad(self.codes.view(torch.uint8), (0, 0, 0, missing))
        return bits.transpose(2, 3).contiguous().view(self.codes.dtype)


def cast(x: Tensor, word: str, policy: Policy, turned: bool = False) -> Operand:
    """x (B, S, H, D) in the format of a name, by scales of the tensor, a head or a block of tokens. turned: by the
    policy's rotation first."""
    rows, form = x.transpose(1, 2).float(), FORMATS[word]
    if turned and policy.hadamard:
        rows = rows @ rotation(x.shape[-1], torch.float32, x.device)
    length, tokens = rows.shape[2], rows.shape[2]
    if policy.granularity == "block":
        tokens = policy.block
        parts = torch.nn.functional.pad(rows, (0, 0, 0, -length % tokens)).unflatten(2, (-1, tokens))
        scales = scales_of(parts, form, policy, (-2, -1))
        codes = (parts / _divisor(scales)).to(DTYPES[word]).flatten(2, 3)[:, :, :length]
    else:
        scales = scales_of(rows, form, policy, (0, 1, 2, 3) if policy.granularity == "tensor" else (-2, -1))
        codes = (rows / _divisor(scales)).to(DTYPES[word])
    per_head = scales.flatten(2).expand(*rows.shape[:2], -1)
    return Operand(codes.contiguous(), per_head.contiguous(), tokens)


def turned_back(x: Tensor, policy: Policy) -> Tensor:
    """The gradient (B, S, H, D) of a tensor from that of the one that `cast` turned."""
    return x.float() @ rotation(x.shape[-1], torch.float32, x.device).mT if policy.hadamard else x


def _divisor(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1.0, scales)
