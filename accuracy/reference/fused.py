"""The same reference by fused kernels on a GPU's float64 tensor cores: memory stays linear in the sequence length.

The backward computes weights p and slopes p (dp - delta) of one square of rows and keys after another. Sums are in a
fixed order: equal inputs give equal bits. `float64.attention` is the specification of this code, and its check.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from accuracy.reference import fused_kernels
from accuracy.reference.float64 import Reference, assert_exact_arithmetic, seen_keys
from accuracy.reference.planes import (
    HELD,
    HELD_INPUTS,
    MULTIPLE,
    Intervals,
    Planes,
    padded,
    padded_dim,
    padded_length,
)  # fmt: skip

NARROW = 1024
"""A square's side at least, unless memory holds less: shorter ones are launches more than work."""
PLAIN_BITS = 450
"""Below it no score overflows as a power of two, nor does a sum of 2^60 of them: no maximum need be subtracted."""


@dataclass(frozen=True)
class Tiles:
    """rows, keys: of a tile of scores; warps, stages: Triton's num_warps and num_stages; chunk: of the head dim."""

    rows: int
    keys: int
    warps: int
    stages: int
    chunk: int = 16


# By the padded head dim's upper limit; the fastest of those tried on an H200.
FORWARD = {64: Tiles(64, 32, 4, 3), 128: Tiles(128, 16, 8, 3), 256: Tiles(32, 16, 4, 3)}
BACKWARD = Tiles(64, 64, 4, 4)


@dataclass(frozen=True)
class Group:
    """Some heads of one item: query (times scale / ln 2), gradient (H, Sq, D), key, value (Hk, S, D): float64, padded.
    intervals: what each row sees; online: whether a maximum is subtracted."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    intervals: Intervals
    online: bool

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, scale: float, intervals: Intervals) -> "Group":
        """Of q, dout (Sq, H, D) and k, v (S, Hk, D)."""
        query, key, value, gradient = (padded(x) for x in (q, k, v, dout))
        query *= scale / math.log(2)
        largest = query.norm(dim=2).max() * key.norm(dim=2).max()  # of all |s|, by Cauchy and Schwarz
        return cls(query, key, value, gradient, intervals, float(largest) >= PLAIN_BITS)


def attention(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, scale: float, causal: bool, top_left: bool = False,
    window: int | None = None, documents: Sequence[int] = (),
) -> Reference:  # fmt: skip
    """See `float64.attention`. This code knows no softcap, and head dims to 256."""
    assert_exact_arithmetic(q.device.type)
    seen = seen_keys(q.shape[1], k.shape[1], causal, top_left, window, documents)
    intervals = Intervals.of(seen, padded_length(q.shape[1]), padded_length(k.shape[1]), q.device)
    planes = Planes.empty(q, k)
    for item, (heads, heads_kv) in product(range(q.shape[0]), _groups(q, k)):
        inputs = (x[item, :, chosen] for x, chosen in ((q, heads), (k, heads_kv), (v, heads_kv), (dout, heads)))
        group, part = Group.of(*inputs, scale=scale, intervals=intervals), planes.of(item, heads, heads_kv)
        forward(part, group)
        backward(part, group)
    planes.dq.mul_(scale)
    planes.dk.mul_(math.log(2))  # its sum ran over queries times scale / ln 2
    return planes.reference(q, k)


def _groups(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Query heads and the key/value heads that they share, as many at once as memory is planned for."""
    share = q.shape[2] // k.shape[2]
    each = 2 * (padded_length(q.shape[1]) * share + padded_length(k.shape[1])) * padded_dim(q.shape[3])
    most = max(1, min(HELD_INPUTS // each, HELD // (share * MULTIPLE**2)))
    for first in range(0, k.shape[2], most):
        last = min(first + most, k.shape[2])
        yield slice(first * share, last * share), slice(first, last)


def forward(part: Planes, group: Group) -> None:
    """Compute out, lse, delta and bits of the group's heads."""
    (heads, rows, dim), (heads_kv, keys, _) = group.query.shape, group.key.shape
    tiles = next(tiles for limit, tiles in FORWARD.items() if dim <= limit)
    fused_kernels.forward[(rows // tiles.rows * heads,)](
        group.query, group.key, group.value, group.gradient, part.out, part.lse, part.delta, part.bits,
        group.intervals.begins, group.intervals.ends, group.intervals.ranges(tiles.rows, tiles.keys),
        rows, keys, heads // heads_kv,
        dim, tiles.rows, tiles.keys, group.online, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def backward(part: Planes, group: Group) -> None:
    """Add dq, dk and dv, but for their constant factors, square by square, from what the forward left."""
    side = _side(len(group.query), max(group.query.shape[1], group.key.shape[1]), group.intervals.widest())
    for rows, keys in group.intervals.squares(side):
        _add_square(part, group, rows, keys)


def _side(heads: int, length: int, widest: int) -> int:
    """Of a square: as large as memory allows; smaller where a sixteenth of the length is, for a diagonal square's half
    is wasted, or where half of what a row of a window or a document sees at most is."""
    side = min(math.isqrt(HELD // heads), max(2048, length // 16))
    if widest <= length // 2:
        side = min(side, max(NARROW, widest // 2))
    return max(MULTIPLE, side // MULTIPLE * MULTIPLE)


def _add_square(part: Planes, group: Group, rows: slice, keys: slice) -> None:
    """The gradients of a square; heads that share keys stand beside each other. Its memory is free when it returns."""
    weights, slopes, query, gradient = (
        x.unflatten(0, (len(group.key), -1)).flatten(1, 2)
        for x in (*_weights_and_slopes(part, group, rows, keys), group.query[:, rows], group.gradient[:, rows])
    )
    part.dv[:, keys].baddbmm_(weights.transpose(1, 2), gradient)
    part.dk[:, keys].baddbmm_(slopes.transpose(1, 2), query)
    part.dq[:, rows] += torch.bmm(slopes, group.key[:, keys]).view(part.dq[:, rows].shape)


def _weights_and_slopes(part: Planes, group: Group, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
    """Both (H, rows, keys) of the square."""
    (heads, padded_rows, dim), (heads_kv, padded_keys, _) = group.query.shape, group.key.shape
    height, width, tiles = rows.stop - rows.start, keys.stop - keys.start, BACKWARD
    weights, slopes = (group.query.new_empty(heads, height, width) for _ in range(2))
    fused_kernels.backward[(height // tiles.rows * (width // tiles.keys), heads)](
        group.query, group.key, group.value, group.gradient, part.bits, part.delta, weights, slopes,
        group.intervals.begins, group.intervals.ends, padded_rows, padded_keys, heads // heads_kv,
        rows.start, keys.start, height, width, dim,
        dim, tiles.rows, tiles.keys, tiles.chunk, group.online, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return weights, slopes
