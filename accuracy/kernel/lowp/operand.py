"""A tensor as an FP8 tensor core reads it: codes, the codes transposed for products over tokens, and their scales.

A Hopper tensor core takes the right factor of an 8-bit product along the sum only, where a 16-bit one takes either
order: v in the forward, q, k and dout in the backward are copied transposed.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS, Policy
from accuracy.runtime.rounding import rotation, scales_of

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
        return self._copied(interleaved=False)

    @cached_property
    def interleaved(self) -> Tensor:
        """`transposed` with each 16 tokens in the order 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15: the one in which a
        thread has its numbers of a product on tensor cores, which then are its factors in the next."""
        return self._copied(interleaved=True)

    def _copied(self, *, interleaved: bool) -> Tensor:
        missing = -self.codes.shape[2] % ALIGNED
        bits = torch.nn.functional.pad(self.codes.view(torch.uint8), (0, 0, 0, missing)).transpose(2, 3)
        if interleaved:
            bits = bits.unflatten(-1, (-1, 2, 4, 2)).transpose(-3, -2).flatten(-4)
        return bits.contiguous().view(self.codes.dtype)


def cast(x: Tensor, word: str, policy: Policy, turned: bool = False) -> Operand:
    """x (B, S, H, D) in the format of a name, by scales of the tensor, a head or a block of tokens. turned: by the
    policy's rotation first."""
    rows, form = x.transpose(1, 2), FORMATS[word]
    if turned and policy.hadamard:
        rows = rows.float() @ rotation(x.shape[-1], torch.float32, x.device)
    tokens = policy.block if policy.granularity == "block" else rows.shape[2]
    parts = rows.abs().amax(-1).float()
    most = torch.nn.functional.pad(parts, (0, -parts.shape[2] % tokens)).unflatten(2, (-1, tokens)).amax(-1)
    most = most.amax() if policy.granularity == "tensor" else most
    scales = scales_of(rows, form, policy, (), most)
    per_head = scales.expand(*rows.shape[:2], most.shape[-1] if most.ndim else 1).contiguous()
    divisors = torch.where(per_head == 0, 1.0, per_head)
    spread = divisors.repeat_interleave(tokens, 2)[:, :, : rows.shape[2], None]
    return Operand((rows.float() / spread).to(DTYPES[word]).contiguous(), per_head, tokens)


def turned_back(x: Tensor, policy: Policy) -> Tensor:
    """The gradient (B, S, H, D) of a tensor from that of the one that `cast` turned."""
    return x.float() @ rotation(x.shape[-1], torch.float32, x.device).mT if policy.hadamard else x
