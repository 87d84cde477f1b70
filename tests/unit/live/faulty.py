"""Attention that is wrong only where something special is there, to be shrunk to that."""

from typing import Any

import torch
from torch import Tensor

from tests.slow.foreign.functions import eager


def loses_a_block(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """From the 17th key on, the first key is taken for another one."""
    return eager(q, torch.cat([k[:, 1:2], k[:, 1:]], 1) if k.shape[1] >= 17 else k, v, **how)


def overflows(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """A value above 100 is lost."""
    return eager(q, k, v.masked_fill(v > 100, 0.0), **how)


def scales_a_gradient(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """dk of keys above 100 is doubled."""
    factor = torch.where((k > 100).any(-1, keepdim=True), 2.0, 1.0)
    return eager(q, factor * k - (factor - 1) * k.detach(), v, **how)


def right(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    return eager(q, k, v, **how)


def refuses(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    raise ValueError("not today")
