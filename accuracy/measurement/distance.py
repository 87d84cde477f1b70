"""How far a tensor is from what it is compared with, reduced on its device: few passes over it, one transfer of
all that is compared.

Everything works on shards (W, B, S/W, heads[, D]) and keeps the ranks apart. Where all is finite, the usual case, sums
need no care for NaN and infinities; what is not finite goes through `metrics.sums`, which is total.
"""

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.measurement import metrics
from accuracy.measurement.begun import Begun, Numbers, read
from accuracy.measurement.metrics import Array, Sums
from accuracy.runtime.rounding import spacing
from accuracy.runtime.workspace import Workspace


@dataclass
class Target:
    """The shards that results are compared with, float64, and what every comparison takes from them."""

    values: Tensor
    _norm_square: Tensor | None = None
    _norms: tuple[Tensor, Tensor] | None = None

    def norm_square(self, scratch: Tensor) -> Tensor:
        """Of each rank's finite values: (W,). scratch: like the values, overwritten."""
        if self._norm_square is None:
            self._norm_square = metrics.norm_square(self.values, out=scratch)
        return self._norm_square

    def norms(self, scratch: Tensor) -> tuple[Tensor, Tensor]:
        """Squared norms of the heads of each token, (W, N), and the sums of their squares, (W,). scratch: like the
        values, overwritten."""
        if self._norms is None:
            norms = metrics.heads(torch.mul(self.values, self.values, out=scratch)).clone()  # no view of scratch
            self._norms = norms, norms.square().sum(1)
        return self._norms


@dataclass(frozen=True)
class Distance:
    """sums: of each rank; ulp: the largest error in spacings, (W,); token_square, token_largest: of each local token,
    (W, S/W). Those that were not asked for are None."""

    sums: Sums
    ulp: Array | None = None
    token_square: Array | None = None
    token_largest: Array | None = None


def distance(x: Tensor, target: Target, **asked: Any) -> Distance:
    """Of x (W, B, S/W, heads[, D]), any dtype. signed: the sums that have signs too (else 0). ulp_dtype: with the error
    in that format's spacings, with the errors of each token, and with the place of the largest (else 0). workspace: for
    intermediates."""
    (found,) = read([begin(x, target, **asked)])
    return found or _of_anything(x, target, asked.get("ulp_dtype"))


def begin(
    x: Tensor, target: Target, *, signed: bool = True, ulp_dtype: str | None = None, workspace: Workspace | None = None
) -> Begun[Distance]:
    """As `distance`, of finite numbers: None of others."""
    workspace = workspace or Workspace()
    error, scratch = workspace.like(x, "error"), workspace.like(x, "scratch")
    torch.sub(x, target.values, out=error)
    over_token = [1, *range(3, error.dim())]
    square = torch.mul(error, error, out=scratch).sum(over_token)
    parts = {"square": square.sum(1), "norm_square": target.norm_square(scratch)}
    if signed:
        outward = torch.sign(target.values, out=scratch).mul_(error)
        parts |= {"signed": error.flatten(1).sum(1), "outward": outward.flatten(1).sum(1)}
        norms, parts["norm_quartic"] = target.norms(scratch)
        along = metrics.along(torch.mul(error, target.values, out=scratch), norms)
        parts |= zip(("along", "along_square", "along_norm"), along, strict=True)
    size = error.abs_()
    largest = size.amax(over_token)
    parts |= {"total": size.flatten(1).sum(1), "largest": largest.amax(1)}
    if ulp_dtype is not None:
        in_spacings = torch.div(size, spacing(target.values, ulp_dtype, out=scratch), out=scratch)
        parts |= {"ulp": in_spacings.flatten(1).amax(1), "token_square": square, "token_largest": largest}
        parts |= _worst(size, largest)
    return Begun(parts, partial(_of_finite, shape=x.shape))


def _of_finite(parts: Numbers, shape: torch.Size) -> Distance | None:
    if not parts["total"].max() < float("inf"):
        return None
    none = np.zeros(shape[0])
    by_token = {name: parts.pop(name) for name in ("ulp", "token_square", "token_largest") if name in parts}
    if by_token:
        token, place, inner = parts.pop("worst_token"), parts.pop("worst_place"), math.prod(shape[3:])
        parts["worst"] = (place // inner * shape[2] + token) * inner + place % inner
    given = {name: parts.get(name, none) for name in (each.name for each in fields(Sums))}
    given |= {"signed_square": parts["square"], "count": none + math.prod(shape[1:])}
    return Distance(Sums(**given), **by_token)


def _worst(size: Tensor, largest: Tensor) -> dict[str, Tensor]:
    """Where each rank's largest element is, (W,): its token, and its place of that token's (B, heads[, D])."""
    token = largest.argmax(1)
    rank = torch.arange(len(token), device=token.device)
    place = size[rank, :, token].flatten(1).argmax(1)  # of (W, B, heads[, D])
    return {"worst_token": token.double(), "worst_place": place.double()}


def _of_anything(x: Tensor, target: Target, ulp_dtype: str | None) -> Distance:
    """NaN and infinities on either side."""
    error = metrics.error_of(x, target.values)
    sums = metrics.sums(error, x, target.values)
    if ulp_dtype is None:
        return Distance(sums)
    over_token = [1, *range(3, error.dim())]
    by_token = (each.cpu().numpy() for each in (error.square().sum(over_token), error.abs().amax(over_token)))
    return Distance(sums, metrics.ulp_max(error, target.values, ulp_dtype), *by_token)
