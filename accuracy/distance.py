"""How far a tensor is from what it is compared with, reduced on its device: few passes over it, one transfer.

Everything works on shards (W, B, S/W, heads[, D]) and keeps the ranks apart. Where all is finite, the usual case, sums
need no care for NaN and infinities; what is not finite takes the road of `metrics.sums`, which is total.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from accuracy import metrics
from accuracy.metrics import Array, Sums


@dataclass
class Target:
    """The shards that results are compared with, float64, and what every comparison takes from them."""

    values: Tensor
    _spacings: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def sign(self) -> Tensor:
        """1, 0 or -1, in one byte each."""
        return self.values.sign().to(torch.int8)

    @cached_property
    def norm_square(self) -> Array:
        """Of each rank's finite values: (W,)."""
        return metrics.norm_square(self.values).cpu().numpy()

    def spacing(self, dtype: str) -> Tensor:
        """See `metrics.spacing`."""
        if dtype not in self._spacings:
            self._spacings[dtype] = metrics.spacing(self.values, dtype)
        return self._spacings[dtype]


@dataclass(frozen=True)
class Distance:
    """sums: of each rank; ulp: the largest error in spacings, (W,); token_square, token_largest: of each local token,
    (W, S/W). Those that were not asked for are None."""

    sums: Sums
    ulp: Array | None = None
    token_square: Array | None = None
    token_largest: Array | None = None


def distance(x: Tensor, target: Target, *, signed: bool = True, ulp_dtype: str | None = None) -> Distance:
    """Of x (W, B, S/W, heads[, D]), any dtype. signed: the sums that have signs too (else 0). ulp_dtype: with the error
    in that format's spacings, and with the errors of each token."""
    error = torch.sub(x, target.values)
    size = error.abs()
    over_token = [1, *range(3, error.dim())]
    largest, square = size.amax(over_token), error.square().sum(over_token)
    parts = [size.flatten(1).sum(1), square.sum(1), largest.amax(1), _worst(size, largest).double()]
    if ulp_dtype is not None:
        parts.append((size / target.spacing(ulp_dtype)).flatten(1).amax(1))
    if signed:
        parts += [error.flatten(1).sum(1), torch.mul(error, target.sign, out=size).flatten(1).sum(1)]
    by_token = [largest.flatten(), square.flatten()] if ulp_dtype is not None else []
    sent = torch.cat([torch.stack(parts).flatten(), *by_token]).cpu().numpy()
    ranks = x.shape[0]
    numbers = sent[: len(parts) * ranks].reshape(len(parts), ranks)
    if not numbers[0].max() < float("inf"):
        return _of_anything(x, target, ulp_dtype)
    total, squares, top, worst, *more = numbers
    ulp = more.pop(0) if ulp_dtype is not None else None
    sums, outward = more if signed else (total * 0, total * 0)
    found = Sums(
        total=total, square=squares, signed=sums, signed_square=squares, outward=outward, largest=top, worst=worst,
        norm_square=target.norm_square, nonfinite=total * 0, count=total * 0 + error[0].numel(),
    )  # fmt: skip
    if ulp_dtype is None:
        return Distance(found)
    token_largest, token_square = sent[len(parts) * ranks :].reshape(2, ranks, -1)
    return Distance(found, ulp, token_square, token_largest)


def _worst(size: Tensor, largest: Tensor) -> Tensor:
    """Flat local index (W,) of each rank's largest element, by way of its token."""
    token = largest.argmax(1)
    rank = torch.arange(len(token), device=token.device)
    of_token = size[rank, :, token]  # (W, B, heads[, D])
    place = of_token.flatten(1).argmax(1)
    inner = of_token[0, 0].numel()
    return (place // inner * size.shape[2] + token) * inner + place % inner


def _of_anything(x: Tensor, target: Target, ulp_dtype: str | None) -> Distance:
    """NaN and infinities on either side."""
    error = metrics.error_of(x, target.values)
    sums = metrics.sums(error, x, target.values)
    if ulp_dtype is None:
        return Distance(sums)
    over_token = [1, *range(3, error.dim())]
    by_token = (each.cpu().numpy() for each in (error.square().sum(over_token), error.abs().amax(over_token)))
    return Distance(sums, metrics.ulp_max(error, target.values, ulp_dtype), *by_token)
