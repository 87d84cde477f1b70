"""Attention sinks: a logit of each head that takes part in the softmax and has no value.

With z = ln(exp(lse) + exp(sink)), out becomes exp(lse - z) out and lse becomes z. They are applied to what a schedule
returns, as models do over kernels that give lse and know no sinks (the rescaled out is rounded once more). A backward
that takes out and lse as given needs no change: p = exp(s - z). The sink's own gradient is, over all tokens,
dsink = - sum exp(sink - z) delta, delta = sum_d dout out.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from accuracy.kernel.base import dtype_of


def apply(out: Tensor, lse: Tensor, sinks: Sequence[float]) -> tuple[Tensor, Tensor]:
    """out (B, S, H, D) and lse (B, H, S), in their dtypes; sinks: one a head."""
    joint = torch.logaddexp(lse, _by_head(sinks, lse))
    share = torch.exp(lse - joint).transpose(1, 2).unsqueeze(-1)
    return (out.to(lse.dtype) * share).to(out.dtype), joint


def gradient(dout: Tensor, out: Tensor, lse: Tensor, sinks: Sequence[float]) -> Tensor:
    """dsink (1, 1, H) of these tokens, for out and lse after `apply`, in the accumulation dtype."""
    dtype = dtype_of("accumulate", dout)
    delta = (dout.to(dtype) * out.to(dtype)).sum(-1).transpose(1, 2)
    share = torch.exp(_by_head(sinks, lse) - lse).to(dtype)
    return -(share * delta).sum((0, 2))[None, None]


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of all ranks' dsink, in rank order."""
    return reduce(Tensor.add, parts)


def _by_head(sinks: Sequence[float], lse: Tensor) -> Tensor:
    return torch.tensor(sinks, dtype=lse.dtype, device=lse.device)[:, None]
