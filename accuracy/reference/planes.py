"""How the fused kernels want tensors (head by head, in whole tiles) and masks (an interval of keys a row)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from accuracy.reference.float64 import Reference

MULTIPLE = 128
"""Rows and keys are padded to a multiple of it, which every tile divides."""

HELD = 2**27
"""Weights of a square held at once, and as many slopes: 1 GiB each."""
HELD_INPUTS = 2**29
"""Elements of q, k, v, dout held at once in float64, those of a group of heads: 4 GiB."""


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
        """All zero."""
        of_query, of_key = ((x.shape[0], x.shape[2], padded_length(x.shape[1]), padded_dim(x.shape[3])) for x in (q, k))
        shapes = (of_query, of_query[:3], of_query, of_key, of_key, of_query[:3], of_query[:3])
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=q.device) for shape in shapes))

    def of(self, item: int, heads: slice, heads_kv: slice) -> "Planes":
        """Those of some heads, as views."""
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
        """Of the keys [begin, end) that each row sees, int64 (Sq, 2)."""
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
        """Of the keys that a row sees, the most."""
        return int((self.last - self.first).max())

    def squares(self, side: int) -> Iterator[tuple[slice, slice]]:
        """The rows and keys of each square in which some row sees some key, keys after keys."""
        for key, row in product(range(0, self.keys, side), range(0, len(self.first), side)):
            keys, rows = slice(key, min(key + side, self.keys)), slice(row, min(row + side, len(self.first)))
            if self.last[rows.stop - 1] > key and self.first[row] < keys.stop:
                yield rows, keys
