"""Errors along the global sequence, in equal bins of its tokens."""

import numpy as np
from torch import Tensor

from accuracy.measurement.metrics import Array
from accuracy.results.table import ALL_RANKS

POSITION_BINS = 128


def position_bins(seqlen: int) -> Array:
    """Borders of at most 128 equal bins of the global sequence: int64 (bins + 1,)."""
    bins = min(seqlen, POSITION_BINS)
    return -(-np.arange(bins + 1) * seqlen // bins)


def bin_owners(borders: Array, token_map: Tensor) -> Array:
    """The rank that holds every token of a bin; -1 where several ranks share it. Tokens behind the last border are
    padding."""
    owner = np.empty(token_map.numel(), dtype=np.int64)
    owner[token_map.flatten().numpy()] = np.repeat(np.arange(token_map.shape[0]), token_map.shape[1])
    owner = owner[: borders[-1]]
    lowest, highest = (reduce.reduceat(owner, borders[:-1]) for reduce in (np.minimum, np.maximum))
    return np.where(lowest == highest, lowest, ALL_RANKS)


def by_position(
    borders: Array, token_square: Array, token_largest: Array, elements: int, token_map: Tensor
) -> tuple[Array, Array]:
    """Root mean square and largest |error| in each bin of the global sequence, which ends at the last border.

    token_square, token_largest: of each token's errors, (W, S/W); elements: that a token has; token_map: (W, S/W), the
    global tokens.
    """
    place = token_map.flatten().numpy()
    squares, sizes = (np.empty(len(place)) for _ in range(2))
    squares[place], sizes[place] = token_square.ravel(), token_largest.ravel()
    squares, sizes = squares[: borders[-1]], sizes[: borders[-1]]
    count = np.diff(borders) * elements
    return np.sqrt(np.add.reduceat(squares, borders[:-1]) / count), np.maximum.reduceat(sizes, borders[:-1])
