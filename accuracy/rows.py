"""From a case's metrics to rows of the table: plain values by column name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accuracy import device, metrics, provenance
from accuracy.case import Case
from accuracy.comparison import Compared
from accuracy.table import ALL_RANKS, Row


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


def metric_rows(
    about: Row,
    case: Case,
    tensor: str,
    columns: dict[str, Any],
    shape: torch.Size,
    tokens: Tensor,
    cost: device.Cost,
    counts: Mapping[str, Sequence[int]],
) -> Iterator[Row]:
    """One row a rank, and one for all ranks. columns: `metrics.metric_columns` of an error (W, B, S/W, heads[, D]);
    counts: whole numbers of each rank and, last, of all together."""
    about = {**about, "tensor": tensor, "seconds": cost.seconds, "peak_bytes": cost.peak_bytes}
    worst = columns.pop("worst")
    top = int(columns["error_max"][:-1].argmax())
    for index in range(case.world_size + 1):
        rank = ALL_RANKS if index == case.world_size else index
        place = worst_place(int(worst[index]), shape, tokens[top if rank == ALL_RANKS else rank])
        values = {name: float(column[index]) for name, column in columns.items()}
        whole = {name: int(count[index]) for name, count in counts.items()}
        yield {**about, "rank": rank, **values, "nonfinite": int(values["nonfinite"]), **whole, **place}


def worst_place(flat: int, shape: torch.Size, tokens: Tensor) -> dict[str, int]:
    """Global batch, token, head and dim of a flat index into one rank's shard; dim -1 where a tensor has none.

    A token counts from the tensor's own first: queries and keys have their own counts where they are not as many.
    """
    sizes = shape[1:]
    index: list[int] = []
    for size in reversed(sizes):
        flat, position = divmod(flat, size)
        index.insert(0, position)
    batch, local, head, *dim = index
    return {
        "worst_batch": batch,
        "worst_token": int(tokens[local]),
        "worst_head": head,
        "worst_dim": dim[0] if dim else -1,
    }


def position_columns(case: Case, tensor: str, compared: Compared, tokens: Tensor) -> dict[str, list[Any]]:
    """Rows of the table of positions, column by column: one a bin of the tensor's global sequence.

    tokens: (W, S/W), global.
    """
    apart, shape = compared.apart, compared.shape
    assert apart.token_square is not None
    assert apart.token_largest is not None
    elements = shape.numel() // (shape[0] * shape[2])  # that a token has
    borders = metrics.position_bins(tokens.numel())
    rms, largest = metrics.by_position(apart.token_square, apart.token_largest, elements, tokens)
    bins = len(rms)
    return {
        "case_id": [case.id] * bins,
        "tensor": [tensor] * bins,
        "token_begin": borders[:-1].tolist(),
        "token_end": borders[1:].tolist(),
        "rank": metrics.bin_owners(borders, tokens).tolist(),
        "error_rms": rms.tolist(),
        "error_max": largest.tolist(),
    }
