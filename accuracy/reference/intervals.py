"""The keys that each row sees, one interval a row, as the fused kernels want them: by tiles and squares."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Intervals:
    """Row i sees keys first[i] <= j < last[i], int64 on the host; both only grow, and padded rows see none.

    begins, ends: the same on the device, int32.
    """

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

    def squares(self, side: int) -> Iterator[tuple[slice, slice]]:
        """Squares of rows and keys in which some row sees some key."""
        rows = len(self.first)
        for row in range(0, rows, side):
            stop = min(row + side, rows)
            for key in range(0, self.keys, side):
                end = min(key + side, self.keys)
                if self.last[stop - 1] > key and self.first[row] < end:
                    yield slice(row, stop), slice(key, end)
