"""How far a tensor is from what it is compared with: sums of each rank, and the errors of its tokens.

Everything works on shards (W, B, S/W, heads[, D]) in float64, is reduced on their device, and is sent to the CPU as one
stack of sums. What NaN and infinities count as: see `accuracy.measurement.metrics`.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from accuracy.measurement import metrics
from accuracy.measurement.metrics import Array, Sums
from accuracy.runtime.rounding import spacing


@dataclass(frozen=True)
class Target:
    """The shards that results are compared with, float64, and what every comparison takes from them."""

    values: Tensor

    @cached_property
    def finite(self) -> Tensor:
        """Return the values, zero where they are not finite."""
        return metrics.finite(self.values)

    @cached_property
    def norm_square(self) -> Tensor:
        """Return the squared norm of each rank's finite values: (W,)."""
        return self.finite.square().flatten(1).sum(1)

    @cached_property
    def norms(self) -> Tensor:
        """Return the squared norms of the heads of each token: (W, N)."""
        return metrics.heads(self.finite.square())


@dataclass(frozen=True)
class Distance:
    """sums: of each rank; ulp: the largest error in spacings, (W,); token_square, token_largest: of each local token,
    (W, S/W). Those that were not asked for are None."""

    sums: Sums
    ulp: Array | None = None
    token_square: Array | None = None
    token_largest: Array | None = None


def distance(x: Tensor, target: Target, *, signed: bool = True, ulp_dtype: str | None = None) -> Distance:
    """Compare x with a target.

    Args:
        x: (W, B, S/W, heads[, D]) of any dtype.
        target: of the same shape.
        signed: whether the sums that have signs are wanted; they are 0 without.
        ulp_dtype: the format whose spacings errors are counted in. Without it there are no spacings, no errors of
            tokens, and the place of the largest error is 0.
    """
    error, over_token = metrics.error_of(x, target.values, out=_memory(x, "error")), [1, *range(3, x.dim())]
    finite, scratch = metrics.finite(error), _memory(x, "scratch")
    square = torch.mul(error, error, out=scratch).sum(over_token)
    found = {"square": square.sum(1), "signed_square": square.sum(1), "norm_square": target.norm_square}
    if signed:
        outward = torch.sign(target.finite, out=scratch).mul_(finite).flatten(1).sum(1)
        along = metrics.heads(torch.mul(finite, target.finite, out=scratch))
        found |= {
            "signed": finite.flatten(1).sum(1), "outward": outward,
            "along": along.sum(1), "along_square": along.square().sum(1), "along_norm": (along * target.norms).sum(1),
            "norm_quartic": target.norms.square().sum(1),
        }  # fmt: skip
    if finite is not error or target.finite is not target.values:
        found["nonfinite"] = x.isfinite().logical_not_().flatten(1).sum(1).double()
        found["signed_square"] = finite.square().flatten(1).sum(1)
    size = error.abs_()
    largest = size.amax(over_token)
    found |= {"total": size.flatten(1).sum(1), "largest": largest.amax(1)}
    if ulp_dtype is None:
        return Distance(_sums(found, x.shape))
    found["worst"] = _worst(size, largest)
    # next to a reference of nearly zero any error is 1e30 of its spacings
    typical = spacing((target.norm_square / target.values[0].numel()).sqrt(), ulp_dtype)
    units = spacing(target.values, ulp_dtype, out=scratch).clamp_(min=typical.view(-1, *[1] * (x.dim() - 1)))
    ulp = size.div_(units).flatten(1).amax(1).cpu().numpy()
    return Distance(_sums(found, x.shape), ulp, *torch.stack([square, largest]).cpu().numpy())


def _worst(size: Tensor, largest: Tensor) -> Tensor:
    """Return the flat local index of each rank's largest element, (W,), found by way of its token: a search of all is
    slow."""
    token = largest.argmax(1)
    place = (
        size[torch.arange(len(token), device=token.device), :, token].flatten(1).argmax(1)
    )  # of that token's (B, heads[, D])
    inner = math.prod(size.shape[3:])
    return ((place // inner * size.shape[2] + token) * inner + place % inner).double()


_REUSED: dict[str, Tensor] = {}
REUSED_ELEMENTS = 2**24  # of memory that is used again: 128 MiB


def _memory(x: Tensor, use: str) -> Tensor:
    """Float64 memory of x's shape and layout; on a CPU that of the last call with this use, for the pages of new memory
    cost as much as the arithmetic on it (measured: twice the time of a comparison)."""
    if x.device.type != "cpu" or x.numel() > REUSED_ELEMENTS:
        return torch.empty_like(x, dtype=torch.float64)
    if use not in _REUSED or _REUSED[use].numel() < x.numel():
        _REUSED[use] = torch.empty(x.numel(), dtype=torch.float64)
    return _REUSED[use].as_strided(x.shape, torch.empty_like(x, device="meta").stride())


def _sums(found: dict[str, Tensor], shape: torch.Size) -> Sums:
    """Return the sums as arrays; those that are missing are 0."""
    numbers = dict(zip(found, torch.stack(list(found.values())).cpu().numpy(), strict=True))
    none = np.zeros(shape[0])
    numbers["count"] = none + math.prod(shape[1:])
    return Sums(**{each.name: numbers.get(each.name, none) for each in fields(Sums)})
