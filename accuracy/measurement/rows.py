"""From a case's metrics to rows of the table: plain values, column by column."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.measurement import positions, provenance
from accuracy.measurement.compare import Compared
from accuracy.measurement.metrics import Array
from accuracy.results.table import ALL_RANKS, Columns
from accuracy.runtime import device


def about_case(case: Case, experiment: str, status: str, reason: str) -> dict[str, Any]:
    """The columns that every row of a case has, and all that a case without numbers has."""
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
    """A tensor's columns that differ from row to row: one row a rank, and one for all ranks.

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
    """Global batch, token, head and dim of flat indices into ranks' shards; dim -1 where a tensor has none.

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
    """Rows below each other; a column that a block lacks is null there."""
    lengths = [len(next(iter(block.values()))) for block in blocks]
    names = dict.fromkeys(chain.from_iterable(blocks))

    def column(name: str) -> list[Any]:
        each = (block.get(name, [None] * length) for block, length in zip(blocks, lengths, strict=True))
        return list(chain.from_iterable(each))

    return {name: column(name) for name in names}


def position_columns(case: Case, tensor: str, compared: Compared, tokens: Tensor, length: int) -> Columns:
    """Rows of the table of positions, column by column: one a bin of the tensor's global sequence.

    tokens: (W, S/W), global; length: S, of which padding is no part.
    """
    apart, shape = compared.apart, compared.shape
    assert apart.token_square is not None
    assert apart.token_largest is not None
    elements = shape.numel() // (shape[0] * shape[2])  # that a token has
    borders = positions.position_bins(length)
    rms, largest = positions.by_position(borders, apart.token_square, apart.token_largest, elements, tokens)
    bins = len(rms)
    return {
        "case_id": [case.id] * bins,
        "tensor": [tensor] * bins,
        "token_begin": borders[:-1].tolist(),
        "token_end": borders[1:].tolist(),
        "rank": positions.bin_owners(borders, tokens).tolist(),
        "error_rms": rms.tolist(),
        "error_max": largest.tolist(),
    }
