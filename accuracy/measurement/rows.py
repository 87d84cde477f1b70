"""From a case's metrics to rows of its tables: plain values, column by column, and errors along the global sequence in
equal bins of its tokens."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.measurement import provenance
from accuracy.measurement.compare import Compared
from accuracy.measurement.metrics import Array
from accuracy.results.table import ALL_RANKS, Columns
from accuracy.runtime import device

POSITION_BINS = 128


def about_case(case: Case, experiment: str, status: str, reason: str) -> dict[str, Any]:
    """Return the columns that every row of a case has, and all that a case without numbers has."""
    return {
        **case.identity(),
        "experiment": experiment,
        "device": device.name(case.device),
        "code": provenance.code_of(case),
        "rank": ALL_RANKS,
        "status": status,
        "reason": reason,
    }


def metric_columns(case: Case, compared: Compared, tokens: Tensor) -> Columns:
    """Return a tensor's columns that differ from row to row: one row a rank, and one for all ranks.

    tokens: (W, S/W), global.
    """
    columns = dict(compared.columns)
    worst, nonfinite = columns.pop("worst"), columns.pop("nonfinite")
    top = int(columns["error_max"][:-1].argmax())  # of all ranks, whose worst is the worst
    owners = [*range(case.world_size), top]
    return {
        "rank": [*range(case.world_size), ALL_RANKS],
        **{name: column.tolist() for name, column in columns.items()},
        "nonfinite": nonfinite.astype(int).tolist(),
        "significand_bits": compared.significand_bits.tolist(),
        **worst_places(worst, compared.shape, tokens[owners]),
    }


def worst_places(flat: Array, shape: torch.Size, tokens: Tensor) -> dict[str, list[int]]:
    """Return the global batch, token, head and dim of flat indices into ranks' shards; dim -1 where a tensor has none.

    flat: (N,); shape: (W, B, S/W, heads[, D]); tokens: (N, S/W), of the rank of each. A token counts from the tensor's
    own first: queries and keys have their own counts where they are not as many.
    """
    batch, local, head, *dim = np.unravel_index(flat.astype(int), shape[1:])
    return {
        "worst_batch": batch.tolist(),
        "worst_token": tokens.numpy()[range(len(flat)), local].tolist(),
        "worst_head": head.tolist(),
        "worst_dim": dim[0].tolist() if dim else [-1] * len(flat),
    }


def joined(blocks: Sequence[Columns]) -> Columns:
    """Return the blocks' rows below each other; a column that a block lacks is null there."""
    lengths = [len(next(iter(block.values()))) for block in blocks]
    names = dict.fromkeys(chain.from_iterable(blocks))

    def column(name: str) -> list[Any]:
        each = (block.get(name, [None] * length) for block, length in zip(blocks, lengths, strict=True))
        return list(chain.from_iterable(each))

    return {name: column(name) for name in names}


def position_columns(case: Case, tensor: str, compared: Compared, tokens: Tensor, length: int) -> Columns:
    """Return the rows of the table of positions, column by column: one a bin of the tensor's global sequence.

    tokens: (W, S/W), global; length: S, of which padding is no part.
    """
    distance, shape = compared.distance, compared.shape
    assert distance.token_square is not None
    assert distance.token_largest is not None
    elements = shape.numel() // (shape[0] * shape[2])  # that a token has
    borders = position_bins(length)
    rms, largest = by_position(borders, distance.token_square, distance.token_largest, elements, tokens)
    bins = len(rms)
    return {
        "case_id": [case.id] * bins,
        "tensor": [tensor] * bins,
        "token_begin": borders[:-1].tolist(),
        "token_end": borders[1:].tolist(),
        "rank": bin_owners(borders, tokens).tolist(),
        "error_rms": rms.tolist(),
        "error_max": largest.tolist(),
    }


def position_bins(seqlen: int) -> Array:
    """Return the borders of at most 128 equal bins of the global sequence: int64 (bins + 1,)."""
    bins = min(seqlen, POSITION_BINS)
    return -(-np.arange(bins + 1) * seqlen // bins)


def bin_owners(borders: Array, token_map: Tensor) -> Array:
    """Return the rank that holds every token of a bin; -1 where several ranks share it. Tokens behind the last border
    are padding."""
    owner = np.empty(token_map.numel(), dtype=np.int64)
    owner[token_map.flatten().numpy()] = np.repeat(np.arange(token_map.shape[0]), token_map.shape[1])
    owner = owner[: borders[-1]]
    lowest, highest = (reduce.reduceat(owner, borders[:-1]) for reduce in (np.minimum, np.maximum))
    return np.where(lowest == highest, lowest, ALL_RANKS)


def by_position(
    borders: Array, token_square: Array, token_largest: Array, elements: int, token_map: Tensor
) -> tuple[Array, Array]:
    """Return the root mean square and largest |error| in each bin of the global sequence, which ends at the last
    border.

    token_square, token_largest: of each token's errors, (W, S/W); elements: that a token has; token_map: (W, S/W), the
    global tokens.
    """
    place = token_map.flatten().numpy()
    squares, sizes = (np.empty(len(place)) for _ in range(2))
    squares[place], sizes[place] = token_square.ravel(), token_largest.ravel()
    squares, sizes = squares[: borders[-1]], sizes[: borders[-1]]
    count = np.diff(borders) * elements
    return np.sqrt(np.add.reduceat(squares, borders[:-1]) / count), np.maximum.reduceat(sizes, borders[:-1])
