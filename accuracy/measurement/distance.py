"""How far a tensor is from what it is compared with, reduced on its device: few passes over it, one transfer.

Everything works on shards (W, B, S/W, heads[, D]) and keeps the ranks apart. Where all is finite, the usual case, sums
need no care for NaN and infinities; what is not finite goes through `metrics.sums`, which is total.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy.measurement import metrics
from accuracy.measurement.metrics import Array, Sums
from accuracy.runtime.rounding import spacing
from accuracy.runtime.workspace import Workspace

ALONG = ("along", "along_square", "along_norm", "norm_quartic")  # of Sums, as metrics.along gives them


@dataclass
class Target:
    """The shards that results are compared with, float64, and what every comparison takes from them."""

    values: Tensor
    _norm_square: Array | None = None
    _norms: Tensor | None = None

    def norm_square(self, scratch: Tensor) -> Array:
        """Of each rank's finite values: (W,). scratch: like the values, overwritten."""
        if self._norm_square is None:
            self._norm_square = metrics.norm_square(self.values, out=scratch).cpu().numpy()
        return self._norm_square

    def norms(self, scratch: Tensor) -> Tensor:
        """Squared norms of the heads of each token: (W, N). scratch: like the values, overwritten."""
        if self._norms is None:
            self._norms = metrics.heads(torch.mul(self.values, self.values, out=scratch)).clone()  # no view of scratch
        return self._norms


@dataclass(frozen=True)
class Distance:
    """sums: of each rank; ulp: the largest error in spacings, (W,); token_square, token_largest: of each local token,
    (W, S/W). Those that were not asked for are None."""

    sums: Sums
    ulp: Array | None = None
    token_square: Array | None = None
    token_largest: Array | None = None


def distance(
    x: Tensor, target: Target, *, signed: bool = True, ulp_dtype: str | None = None, workspace: Workspace | None = None
) -> Distance:
    """Of x (W, B, S/W, heads[, D]), any dtype. signed: the sums that have signs too (else 0). ulp_dtype: with the error
    in that format's spacings, with the errors of each token, and with the place of the largest (else 0). workspace: for
    intermediates."""
    workspace = workspace or Workspace()
    error, scratch = workspace.like(x, "error"), workspace.like(x, "scratch")
    torch.sub(x, target.values, out=error)
    over_token = [1, *range(3, error.dim())]
    square = torch.mul(error, error, out=scratch).sum(over_token)
    signs = []
    if signed:
        outward = torch.sign(target.values, out=scratch).mul_(error)
        signs = [error.flatten(1).sum(1), outward.flatten(1).sum(1)]
        norms = target.norms(scratch)
        signs += metrics.along(torch.mul(error, target.values, out=scratch), norms)
    size = error.abs_()
    largest = size.amax(over_token)
    parts = [size.flatten(1).sum(1), square.sum(1), largest.amax(1), *signs]
    if ulp_dtype is not None:
        in_spacings = torch.div(size, spacing(target.values, ulp_dtype, out=scratch), out=scratch)
        parts += [_worst(size, largest).double(), in_spacings.flatten(1).amax(1)]
    by_token = [largest.flatten(), square.flatten()] if ulp_dtype is not None else []
    sent = torch.cat([*parts, *by_token]).cpu().numpy()
    ranks = x.shape[0]
    total, squares, top, *more = sent[: len(parts) * ranks].reshape(len(parts), ranks)
    if not total.max() < float("inf"):
        return _of_anything(x, target, ulp_dtype)
    none = np.zeros(ranks)
    signed_sum, outward_sum, *along = more[:6] if signed else [none] * 6
    worst, ulp = more[6 * signed :] or (none, None)
    found = Sums(
        total=total, square=squares, signed=signed_sum, signed_square=squares, outward=outward_sum,
        **dict(zip(ALONG, along, strict=True)), largest=top, worst=worst, norm_square=target.norm_square(scratch),
        nonfinite=none, count=none + error[0].numel(),
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
