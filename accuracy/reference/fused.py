"""The same reference by fused kernels on a GPU's float64 tensor cores: memory stays linear in the sequence length.

Tensors go head by head, in whole tiles; a mask is an interval of keys a row. The backward computes weights p and slopes
p (dp - delta) of one square of rows and keys after another. Sums are in a fixed order: equal inputs give equal bits.
`float64.attention` is the specification of this code, and its check. Only what launches a kernel imports triton.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from accuracy.reference.float64 import Reference, assert_exact_arithmetic, seen_keys

MULTIPLE = 128
"""Rows and keys are padded to a multiple of it, which every tile divides."""
HELD = 2**27
"""Weights of a square held at once, and as many slopes: 1 GiB each."""
HELD_INPUTS = 2**29
"""Elements of q, k, v, dout held at once in float64, those of a group of heads: 4 GiB."""
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


def padded_length(length: int) -> int:
    """To whole tiles."""
    return -(-length // MULTIPLE) * MULTIPLE


def padded_dim(head_dim: int) -> int:
    """To a power of two, at least the 16 that a product needs."""
    return max(16, 1 << (head_dim - 1).bit_length())


def padded(x: Tensor) -> Tensor:
    """(length, heads, D) -> float64 (heads, length up to a multiple, D up to a power of two), zeros beyond."""
    length, heads, head_dim = x.shape
    padded = torch.zeros(heads, padded_length(length), padded_dim(head_dim), dtype=torch.float64, device=x.device)
    padded[:, :length, :head_dim] = x.transpose(0, 1)
    return padded


@dataclass(frozen=True)
class Planes:
    """Results head by head, rows and head dims padded: out, dq (B, H, Sq, D), dk, dv (B, Hk, S, D), lse, delta
    (B, H, Sq), and bits, log2(e) lse; of a group of heads of one item, the same without B."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    delta: Tensor
    bits: Tensor

    @classmethod
    def empty(cls, q: Tensor, k: Tensor) -> "Planes":
        """Return planes of zeros for queries q and keys k."""
        of_query, of_key = ((x.shape[0], x.shape[2], padded_length(x.shape[1]), padded_dim(x.shape[3])) for x in (q, k))
        shapes = (of_query, of_query[:3], of_query, of_key, of_key, of_query[:3], of_query[:3])
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=q.device) for shape in shapes))

    def of(self, item: int, heads: slice, heads_kv: slice) -> "Planes":
        """Return the planes of some heads of an item, as views."""
        return Planes(
            out=self.out[item, heads], lse=self.lse[item, heads], dq=self.dq[item, heads],
            dk=self.dk[item, heads_kv], dv=self.dv[item, heads_kv], delta=self.delta[item, heads],
            bits=self.bits[item, heads],
        )  # fmt: skip

    def reference(self, q: Tensor, k: Tensor) -> Reference:
        """Without the padding, as views."""
        (_, rows, _, dim), keys = q.shape, k.shape[1]
        out, dq = (x[:, :, :rows, :dim].transpose(1, 2) for x in (self.out, self.dq))
        dk, dv = (x[:, :, :keys, :dim].transpose(1, 2) for x in (self.dk, self.dv))
        return Reference(out, self.lse[:, :, :rows], dq, dk, dv, self.delta[:, :, :rows])


@dataclass(frozen=True)
class Intervals:
    """Row i sees keys first[i] <= j < last[i], int64 on the host; both only grow, and padded rows see none. begins,
    ends: the same on the device, int32."""

    first: Tensor
    last: Tensor
    keys: int
    begins: Tensor
    ends: Tensor

    @classmethod
    def of(cls, seen: Tensor, rows: int, keys: int, device: torch.device) -> "Intervals":
        """Make them of the keys [begin, end) that each row sees, int64 (Sq, 2)."""
        first, last = seen[-1, 1].repeat(2, rows)
        first[: len(seen)], last[: len(seen)] = seen[:, 0], seen[:, 1]
        return cls(first, last, keys, first.int().to(device), last.int().to(device))

    def ranges(self, row_tile: int, key_tile: int) -> Tensor:
        """For each tile of rows where keys begin that need the mask, that need none, that do again, and where they end:
        int32 (tiles, 4)."""
        first, latest = self.first[::row_tile], self.first[row_tile - 1 :: row_tile]
        earliest, last = self.last[::row_tile], self.last[row_tile - 1 :: row_tile]
        whole = ((latest + key_tile - 1) // key_tile).minimum((last + key_tile - 1) // key_tile) * key_tile
        again = (earliest // key_tile * key_tile).maximum(whole)
        return torch.stack([first // key_tile * key_tile, whole, again, last], dim=1).int().to(self.begins.device)

    def widest(self) -> int:
        """Return the number of keys that the row with the most sees."""
        return int((self.last - self.first).max())

    def squares(self, side: int) -> Iterator[tuple[slice, slice]]:
        """The rows and keys of each square in which some row sees some key, keys after keys."""
        for key, row in product(range(0, self.keys, side), range(0, len(self.first), side)):
            keys, rows = slice(key, min(key + side, self.keys)), slice(row, min(row + side, len(self.first)))
            if self.last[rows.stop - 1] > key and self.first[row] < keys.stop:
                yield rows, keys


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
        """Make it of q, dout (Sq, H, D) and k, v (S, Hk, D)."""
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
    from accuracy.reference import fused_kernels

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
    from accuracy.reference import fused_kernels

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
