"""How far apart are two paths of the same attention on the same inputs, and is that what two healthy roundings give?

In: tensors of the whole sequence, (B, S, heads[, D]), of path a, path b, the float64 reference and a healthy kernel
(eager, whose products are summed in float32, once on the whole sequence; with 8-bit casts, or of an lse by a coarse
exp, the paths' own kernels once). Out: numbers of all tokens, of each rank of
path a, and of bins of tokens.

Everything is a sum over rows (a head of a token). With errors e_a, e_b of a row, the squared norm of the difference is
sum e_a^2 + sum e_b^2 - 2 sum <e_a, e_b>. Independent errors have products of random sign, so that the last sum has
mean 0 and the variance sum <e_a, e_b>^2: `drift_expected` and its interval. That holds for wrong paths as for right
ones. What is healthy is bounded by the error of a third kernel, eager: a healthy path has at most HEALTHY times its
error, so two of them differ by at most sqrt(2) HEALTHY times it, wider where few rows say how large it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS, accumulation_dtype, tensor_dtype
from accuracy.measurement import metrics
from accuracy.measurement.metrics import Array

TENSORS = ("out", "lse", "dq", "dk", "dv")
HEALTHY = 1.5  # times the eager kernel's error: above it README says to ask why
INTERVAL = 1.96  # standard errors of 95%
CERTAIN = 5.0  # standard errors that widen the limit: one of 3 million groups is above it by chance
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Rows:
    """Of each row, token first: (S, B heads). Sums over D of squares of errors (a, b, healthy), of the reference and of
    the difference; of products of both errors and of difference and reference. differ, ulp, largest: elements that
    differ, the largest difference in spacings and as it is. floor: a square below which no error is told from none."""

    floor: float
    elements: int  # of a row
    a: Array
    b: Array
    healthy: Array
    reference: Array
    difference: Array
    product: Array
    along: Array
    differ: Array
    ulp: Array
    largest: Array


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors' bits differ; of two dtypes, where their values do."""
    if a.dtype != b.dtype:
        return (a.double() != b.double()) & ~(a.isnan() & b.isnan())
    bits = _BITS[a.element_size()]
    return a.contiguous().view(bits) != b.contiguous().view(bits)


def rows_of(name: str, dtype: str, a: Tensor, b: Tensor, reference: Tensor, healthy: Tensor, natural: float) -> Rows:
    """Return the rows of one tensor. dtype: the case's; natural: the tensor's size where nothing cancels, see
    `Targets`."""
    errors = [metrics.error_of(x, reference) for x in (a, b, healthy)]
    known = reference.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    difference = metrics.error_of(a, b.double())
    differ = differing(a, b)
    spacings = metrics.spacing(reference, tensor_dtype(name, dtype))
    finite = difference.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    products = [errors[0].nan_to_num(posinf=0.0) * errors[1].nan_to_num(posinf=0.0), finite * known]
    squares = [x.square() for x in (*errors, known, difference)]
    sums = [_over_dim(x, "sum") for x in (*squares, *products, differ.double())]
    sizes = [_over_dim(x, "amax") for x in (difference.abs() / spacings, difference.abs())]
    elements = reference.shape[3] if reference.ndim > 3 else 1
    unit = FORMATS[accumulation_dtype(dtype)].unit_roundoff * natural
    arrays: list[Any] = [x.transpose(0, 1).flatten(1).cpu().numpy() for x in (*sums, *sizes)]
    return Rows(elements * (4 * unit) ** 2, elements, *arrays)


def _over_dim(x: Tensor, how: str) -> Tensor:
    return x if x.ndim < 4 else getattr(x, how)(-1)


def numbers(rows: Rows, tokens: Array | slice) -> dict[str, Any]:
    """Return the columns of a group of tokens."""
    a, b, healthy, reference, difference, product, along = (
        getattr(rows, name)[tokens].ravel()
        for name in ("a", "b", "healthy", "reference", "difference", "product", "along")
    )
    norm = reference.sum() or rows.floor * a.size  # a reference of zeros, as dq of a first token
    expected, spread = a.sum() + b.sum(), 2 * INTERVAL * np.sqrt(np.square(product).sum())
    size = np.maximum(rows.reference[tokens], max(1e-6 * float(reference.mean()), rows.floor))
    relative = (rows.difference[tokens] / size).max(1)  # of rows of nearly no size, the mean's counts
    more = a - b
    total = healthy.sum() + rows.floor * healthy.size
    limit = 2 * HEALTHY**2 * (total + CERTAIN * healthy.std() * np.sqrt(healthy.size))
    apart, chance = more.sum(), np.sqrt(np.square(more).sum())
    return {
        "drift_differ": int(rows.differ[tokens].sum()), "drift_ulp": rows.ulp[tokens].max(),
        "drift_max": rows.largest[tokens].max(), "drift_rel": np.sqrt(difference.sum() / norm),
        "drift_row": float(np.sqrt(relative.max())),
        "drift_row_token": float(np.arange(len(rows.a))[tokens][int(relative.argmax())]),
        "drift_error_rel": np.sqrt(b.sum() / norm), "drift_expected": np.sqrt(expected / norm),
        "drift_low": np.sqrt(max(expected - spread, 0.0) / norm),
        "drift_high": np.sqrt((expected + spread) / norm),
        "drift_limit": np.sqrt(float(limit) / norm), "drift_gain": along.sum() / norm,
        "drift_gain_se": np.sqrt(np.square(along - along.sum() / norm * reference).sum()) / norm,
        "drift_nearer": float(apart / chance) if chance > 0 and np.isfinite(apart) else 0.0,
    }  # fmt: skip


def rank_columns(rows: Rows, tokens: Iterable[Array]) -> dict[str, list[Any]]:
    """Return a tensor's columns: of each rank of path a, null where it has no tokens, and last of all tokens. tokens:
    global, of each rank."""
    groups = [*(numbers(rows, each) if len(each) else {} for each in tokens), numbers(rows, slice(None))]
    return {name: [each.get(name) for each in groups] for name in groups[-1]}


def bin_columns(rows: Rows, borders: Array) -> dict[str, list[Any]]:
    """Along the sequence, in bins [borders[i], borders[i + 1]) of tokens."""
    bins = [slice(*pair) for pair in pairwise(borders)]
    differences = [rows.difference[tokens] for tokens in bins]
    return {
        "drift_rms": [float(np.sqrt(each.sum() / (each.size * rows.elements))) for each in differences],
        "drift_max": [float(rows.largest[tokens].max()) for tokens in bins],
        "drift_differ": [int(rows.differ[tokens].sum()) for tokens in bins],
    }
