"""From an observed case to the rows of its tables: the numbers of every tensor and rank, and what observers found.

A case that raises, or that its parts cannot do, becomes one row with the reason.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case, Problem
from accuracy.core.errors import NotShared, RanksEnded, located, traceback_of
from accuracy.core.own_process import raised_by_functions
from accuracy.measurement import compute_device, provenance
from accuracy.measurement.compare import Compared
from accuracy.measurement.metrics import Array
from accuracy.measurement.observe import Bench, Observation, answers
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, FAILED, OF_ALL, OK, UNSUPPORTED, Columns, Row
from accuracy.runtime import arithmetic, device
from accuracy.runtime.sharding import sharding_of, token_map
from accuracy.simulate.program import RunRanks
from accuracy.variant.base import schedule_of
from accuracy.world.simulated import RankFailed


@dataclass(frozen=True)
class Measured:
    """A case's rows for `results/` and `positions/`, column by column, and those of its observers' tables (`steps/`,
    `hypotheses/`, `boundaries/`, `places/`), by name; traceback: of what the case raised."""

    results: Columns
    positions: Columns
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    traceback: str = ""

    def table(self, name: str) -> Sequence[Row]:
        """Return the rows of an observer's table; none where the case asks for none."""
        return self.tables.get(name, ())

    @property
    def rows(self) -> list[Row]:
        """Return the results row by row."""
        return [dict(zip(self.results, row, strict=True)) for row in zip(*self.results.values(), strict=True)]

    @property
    def status(self) -> str:
        """How the case ended."""
        return str(self.results["status"][0])


class Pipeline(Bench):
    """Measures cases one after another for one experiment."""

    def __init__(
        self, experiment: str, run_ranks: RunRanks | None = None, batched: bool = True, alone: bool = False
    ) -> None:
        super().__init__(run_ranks, batched, alone)
        self.experiment = experiment

    def unsupported(self, case: Case, reason: str) -> Measured:
        """Return the row of a case that its parts cannot do."""
        return Measured(_block(1, about_case(case, self.experiment, UNSUPPORTED, reason)), {})

    def failed(self, case: Case, reason: str) -> Measured:
        """Return the row of a case that was not measured to its end."""
        return Measured(_block(1, about_case(case, self.experiment, FAILED, reason)), {})

    def measure(self, case: Case) -> Measured:
        """Observe a case and return its rows; whatever goes wrong becomes a row with the reason."""
        try:
            with arithmetic.random_state_restored(), compute_device.single_threaded(case, self.device_of(case)):
                return self._measured(case)
        except RanksEnded:  # no further case can be measured with these ranks
            raise
        except NotShared as error:
            return self.unsupported(case, str(error))
        except raised_by_functions() as error:
            reason = _reason(error, case.problem)
            elsewhere = isinstance(error, RankFailed) and error.__cause__ is None  # that process writes its own
            text = "" if elsewhere else traceback_of(error)
            out_of_memory = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        if out_of_memory:  # only here, where the error no longer holds the tensors
            self.forget()
        return replace(self.failed(case, reason), traceback=text)

    def _measured(self, case: Case) -> Measured:
        observation = self.observe(case)
        results: dict[str, dict[str, Any]] = {}
        positions: dict[str, dict[str, Any]] = {}
        tables: dict[str, list[Row]] = {}
        for answer in answers(observation):
            for found, columns in ((results, answer.results), (positions, answer.positions)):
                for name, each in columns.items():
                    found.setdefault(name, {}).update(each)
            for name, rows in answer.tables.items():
                tables.setdefault(name, []).extend(rows)
        return replace(self._rows(observation, results, positions), tables=tables)

    def _rows(
        self, observation: Observation, more: Mapping[str, Columns], more_positions: Mapping[str, Columns]
    ) -> Measured:
        """Return the rows of `results/` and `positions/`; more: the observers' columns by tensor."""
        case, compared, cost = observation.case, observation.compared, vars(observation.ran.cost)
        about = about_case(case, self.experiment, OK, "")
        blocks, positions, broken = [], [], []
        for name in ALL_TENSORS:
            if name in OF_ALL and name not in observation.targets.reference:
                continue
            if name not in compared:
                reason = schedule_of(case.variant.forward).missing(name)
                blocks.append(_block(1, {"tensor": name, "rank": ALL_RANKS, "status": UNSUPPORTED, "reason": reason}))
                continue
            length, sharding = case.problem.length(name), sharding_of(case)
            if name in OF_ALL:
                length, sharding = case.world_size * compared[name].shape[2], "contiguous"
            tokens = token_map(sharding, length, case.world_size)
            columns = metric_columns(case, compared[name], tokens)
            same = {"tensor": name, "status": OK, "reason": "", **cost}
            blocks.append({**_block(len(columns["rank"]), same), **columns, **more.get(name, {})})
            bins = position_columns(case, name, compared[name], tokens, length)
            positions.append({**bins, **more_positions.get(name, {})})
            if count := columns["nonfinite"][-1]:
                broken.append(f"{count} non-finite values in {name}")
        varying = joined(blocks)
        rows = len(varying["tensor"])
        failed = _block(rows, {"status": FAILED, "reason": "; ".join(broken)}) if broken else {}
        return Measured({**_block(rows, about), **varying, **failed}, joined(positions))


def _block(rows: int, about: Row) -> dict[str, Sequence[Any]]:
    """So many rows of the same."""
    return {name: [value] * rows for name, value in about.items()}


def _reason(error: BaseException, problem: Problem) -> str:
    """Return one line, without addresses that would differ from run to run; where it names both counts of heads, a
    remedy. One head of k and v has the size that broadcasts, and a 1 is in many a message."""
    line = (" ".join(str(error).split()) if isinstance(error, RankFailed) else located(error))[:500]
    q, kv = problem.heads, problem.heads_kv
    if kv in (1, q) or not {str(q), str(kv)} <= set(re.findall(r"\d+", line)):
        return line
    return f"{line}: q has {q} heads, k and v have {kv}; heads_kv={q} measures a function that wants as many"


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
    found: dict[str, list[Any]] = {name: [] for name in dict.fromkeys(chain.from_iterable(blocks))}
    for block in blocks:
        missing = [None] * len(next(iter(block.values())))
        for name, column in found.items():
            column.extend(block.get(name, missing))
    return found


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
