"""Numbers for the distance between a tensor and its reference: total functions, computed in float64.

Total: defined for NaN, infinities and zero on either side, and never NaN. An element that is not finite where the
reference is (or the other way round) has an infinite error; equal infinities have none; 0 / 0 is 0 where a distance is
relative to a norm, and 1 where two errors are compared.

Everything works on shards (W, B, S/W, heads[, D]) and keeps the ranks apart; all ranks together follow from the sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS, REFERENCE_ERROR
from accuracy.results.derived import ratio
from accuracy.runtime.rounding import spacing

Array = np.ndarray
SAMPLE = 256
"""Elements of a rank, about: in a tensor with all of its significant bits, none of 171 to 511 has the last one with a
chance of 2^-171 at most."""


def error_of(x: Tensor, reference: Tensor, out: Tensor | None = None) -> Tensor:
    """x - reference in float64; infinite where just one is not finite or x is NaN; 0 where both are the same
    infinity."""
    error = torch.sub(x.double(), reference, out=out)
    if error.sum().isfinite():  # then each element is
        return error
    error = error.nan_to_num_(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    return error.masked_fill_(x == reference, 0.0)


def finite(x: Tensor) -> Tensor:
    """x itself where all is finite, else a copy with zeros in place of what is not."""
    return x if x.sum().isfinite() else x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class Sums:
    """What can be added over ranks, each an array (W,) of float64.

    total: sum of |e|; square: of e^2; signed: of e where finite; signed_square: of its squares; outward: of e where
    finite, times the reference's sign; along: of e times the reference where finite; along_square, along_norm,
    norm_quartic: of a^2, a n and n^2, where a token's head has a = sum of e times the reference and n = sum of the
    reference squared; largest: max |e|; worst: flat local index of the largest; norm_square: of the reference, squared,
    where finite; nonfinite: elements of x that are not finite; count: elements.
    """

    total: Array
    square: Array
    signed: Array
    signed_square: Array
    outward: Array
    along: Array
    along_square: Array
    along_norm: Array
    norm_quartic: Array
    largest: Array
    worst: Array
    norm_square: Array
    nonfinite: Array
    count: Array


def heads(values: Tensor) -> Tensor:
    """Sums of (W, B, S/W, heads[, D]) over a head of a token: (W, N)."""
    return (values.sum(-1) if values.dim() > 4 else values).flatten(1)


def rounding_sums(reference: Tensor) -> Sums:
    """Return what rounding is expected to cost a reference that is itself rounded to float64: spacing / sqrt(12), the
    root mean square of an error spread evenly over one spacing. It has no sign and no place: those fields are 0."""
    flat = reference.flatten(1)
    expected = spacing(flat, "float64").div_(math.sqrt(12)).masked_fill_(~flat.isfinite(), 0.0)  # that is not rounded
    total, largest, square = expected.sum(1), expected.amax(1), expected.square_().sum(1)
    norm_square = finite(reference).square().flatten(1).sum(1)
    sent = torch.stack([total, square, largest, norm_square]).cpu().numpy()
    none = np.zeros(len(flat))
    return Sums(
        total=sent[0], square=sent[1], signed=none, signed_square=none, outward=none, along=none, along_square=none,
        along_norm=none, norm_quartic=none, largest=sent[2], worst=none, norm_square=sent[3], nonfinite=none,
        count=none + flat.shape[1],
    )  # fmt: skip


def of_tensors(each: Sequence[Sums]) -> Sums:
    """Return several tensors' sums (W,) as one of arrays (tensors, W)."""
    return Sums(*(np.array(same) for same in zip(*(vars(sums).values() for sums in each), strict=True)))


def with_all_ranks(each: Sums) -> Sums:
    """Return the ranks' sums (..., W) and, appended, those of all ranks together: (..., W + 1). worst: of the worst
    rank."""
    top = each.largest.argmax(-1)[..., None]
    picked = ("largest", "worst")
    return Sums(
        **{
            name: appended(values, np.take_along_axis(values, top, -1) if name in picked else None)
            for name, values in vars(each).items()
        }
    )


def appended(values: Array, last: Array | None = None) -> Array:
    """Return the values (..., W) and one for all ranks together, their sum if no other is given: (..., W + 1)."""
    return np.concatenate([values, values.sum(-1, keepdims=True) if last is None else last], -1)


def relative(each: Sums) -> Array:
    """Return the relative Frobenius norm ||e|| / ||reference||; 0 / 0 = 0."""
    return np.sqrt(ratio(each.square, each.norm_square, zero_by_zero=0.0))


def norms(error: Sums, natural: Array | float) -> Array:
    """Return the squares that relative errors are relative to: of the reference's norm, or of the natural size.

    natural: the root mean square of an element where nothing cancels. A reference that is zero beside it, to within the
    reference's own error (dq of a sequence of one token, the mean of codes that cancel), has no digits.
    """
    size = natural**2 * error.count
    return np.where(error.norm_square <= REFERENCE_ERROR**2 * size, size, error.norm_square)


def gain(each: Sums) -> Array:
    """<x, reference> / <reference, reference> - 1 of finite elements: 0.01 where x is 1.01 times the reference."""
    return np.copysign(ratio(np.abs(each.along), each.norm_square, zero_by_zero=0.0), each.along)


def gain_se(each: Sums) -> Array:
    """Return the standard error of `gain`: what a factor leaves of the error, heads of tokens taken as independent,
    whose dims are not (White 1980, Econometrica 48, for a regression through the origin)."""
    slope = gain(each)
    with np.errstate(invalid="ignore", over="ignore"):
        left = each.along_square - 2 * slope * each.along_norm + slope**2 * each.norm_quartic
    return np.sqrt(ratio(np.maximum(np.nan_to_num(left), 0.0), each.norm_square**2, zero_by_zero=0.0))


def significance(each: Sums) -> Array:
    """Return the signed mean in units of its standard error over the elements, taken as independent (Student's t)."""
    mean = each.signed / each.count
    with np.errstate(over="ignore", invalid="ignore"):  # squares beyond float64: an infinite variance
        variance = np.nan_to_num(each.signed_square / each.count - mean**2, nan=np.inf, posinf=np.inf)
    variance = np.maximum(variance, 0.0)
    size = ratio(np.abs(mean), np.sqrt(variance / each.count), zero_by_zero=0.0)
    return np.copysign(size, mean)


def metric_columns(
    error: Sums, diff: Sums, single_device: Sums, floor: Sums, ulp: Array, natural: Array | float = 0.0
) -> dict[str, Array]:
    """Return the table's metrics, each an array (..., W + 1), the last for all ranks. Arguments: of each rank, (...,
    W); natural (..., 1): see `norms`."""
    error, diff, single_device, floor = (with_all_ranks(each) for each in (error, diff, single_device, floor))
    norm = norms(error, natural)
    zero = norm != error.norm_square
    error_rel, diff_rel, single_device_rel, floor_rel = (
        relative(replace(each, norm_square=np.where(zero, norm, each.norm_square)))
        for each in (error, diff, single_device, floor)
    )
    return {
        "error_max": error.largest,
        "error_mean": error.total / error.count,
        "error_rms": np.sqrt(error.square / error.count),
        "error_rel": error_rel,
        "error_bias": error.signed / error.count,
        "error_bias_t": significance(error),
        "error_outward": error.outward / error.count,
        "error_gain": np.where(zero, 0.0, gain(error)),  # of a reference without digits there is none
        "error_gain_se": np.where(zero, 0.0, gain_se(error)),
        "diff_max": diff.largest,
        "diff_mean": diff.total / diff.count,
        "diff_rms": np.sqrt(diff.square / diff.count),
        "diff_rel": diff_rel,
        "single_device_rel": single_device_rel,
        "single_device_max": single_device.largest,
        "single_device_bias": single_device.signed / single_device.count,
        "single_device_outward": single_device.outward / single_device.count,
        "floor_mean": floor.total / floor.count,
        "floor_rel": floor_rel,
        "x_floor": ratio(error_rel, floor_rel, zero_by_zero=1.0),
        "x_single_device": ratio(error_rel, single_device_rel, zero_by_zero=1.0),
        "ulp_max": appended(ulp, ulp.max(-1, keepdims=True)),
        "reference_rms": np.sqrt(error.norm_square / error.count),
        "nonfinite": error.nonfinite,
        "worst": error.worst,
    }


def loss_columns(loss: Sums) -> dict[str, Array]:
    """Return what is lost against unquantised inputs, each an array (..., W + 1). loss: of each rank, (..., W)."""
    loss = with_all_ranks(loss)
    return {
        "loss_max": loss.largest,
        "loss_mean": loss.total / loss.count,
        "loss_rms": np.sqrt(loss.square / loss.count),
        "loss_rel": relative(loss),
    }


def significand_bits(x: Tensor, dtype: str | None) -> Array:
    """Return the fewest significant bits in which every value of a rank's shard x (W, ...) is exact: (W,); 0 where all
    are zero. dtype: in which x is stored; x may be wider; None: x is not stored.

    A tensor that somebody rounded to bfloat16 on its way has 8, whatever dtype it is stored in. Mostly a few elements
    show that all bits of the tensor's dtype are in use, and no others need be looked at.
    """
    flat = x.flatten(1)
    if dtype is not None:
        few = _bits(flat[:, :: flat.shape[1] // SAMPLE | 1])  # an odd step: of many dimensions of a head
        if (few == FORMATS[dtype].precision).all():
            return few
    return _bits(flat)


def _bits(flat: Tensor) -> Array:
    """53 less the zeros behind the lowest bit of all significands, of which each has 53: (W,)."""
    mantissa, _ = torch.frexp(flat.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    digits = (mantissa * 2.0**53).long()
    lowest = (digits & -digits).masked_fill_(digits == 0, 2**53).amin(1).double()
    return 54 - np.frexp(lowest.cpu().numpy())[1]  # the exponent is 1 + trailing zeros
