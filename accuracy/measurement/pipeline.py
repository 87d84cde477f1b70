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
from accuracy.measurement.observe import Bench, answers
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
            self._targets = None
            torch.cuda.empty_cache()
        return replace(self.failed(case, reason), traceback=text)

    def _measured(self, case: Case) -> Measured:
        observation = self.observe(case)
        more: dict[str, dict[str, Any]] = {}  # the observers' columns by tensor
        more_positions: dict[str, dict[str, Any]] = {}
        tables: dict[str, list[Row]] = {}
        for answer in answers(observation):
            for found, given in ((more, answer.results), (more_positions, answer.positions)):
                for name, each in given.items():
                    found.setdefault(name, {}).update(each)
            for name, rows in answer.tables.items():
                tables.setdefault(name, []).extend(rows)
        compared, cost = observation.compared, vars(observation.ran.cost)
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
            bins = position_columns(compared[name], position_bins(length), tokens)
            same = {"case_id": case.id, "tensor": name}
            positions.append({**_block(len(bins["rank"]), same), **bins, **more_positions.get(name, {})})
            if count := columns["nonfinite"][-1]:
                broken.append(f"{count} non-finite values in {name}")
        varying = joined(blocks)
        height = len(varying["tensor"])
        failed = _block(height, {"status": FAILED, "reason": "; ".join(broken)}) if broken else {}
        return Measured({**_block(height, about), **varying, **failed}, joined(positions), tables)


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


def position_bins(seqlen: int) -> Array:
    """Return the borders of at most 128 equal bins of the global sequence: int64 (bins + 1,)."""
    bins = min(seqlen, POSITION_BINS)
    return -(-np.arange(bins + 1) * seqlen // bins)


def position_columns(compared: Compared, borders: Array, token_map: Tensor) -> dict[str, list[Any]]:
    """Return the table of positions, column by column: one row a bin of the tensor's global sequence, which ends at the
    last border; padding lies behind it. rank: that which holds every token of the bin, -1 where several share it.

    token_map: (W, S/W), the global tokens.
    """
    distance, shape = compared.distance, compared.shape
    assert distance.token_square is not None
    assert distance.token_largest is not None
    elements = shape.numel() // (shape[0] * shape[2])  # that a token has
    local = np.argsort(token_map.flatten().numpy())[: borders[-1]]  # of each global token
    begin, count = borders[:-1], np.diff(borders) * elements
    square = np.add.reduceat(distance.token_square.ravel()[local], begin)
    ranks = local // token_map.shape[1]
    lowest, highest = np.minimum.reduceat(ranks, begin), np.maximum.reduceat(ranks, begin)
    return {
        "token_begin": begin.tolist(),
        "token_end": borders[1:].tolist(),
        "rank": np.where(lowest == highest, lowest, ALL_RANKS).tolist(),
        "error_rms": np.sqrt(square / count).tolist(),
        "error_max": np.maximum.reduceat(distance.token_largest.ravel()[local], begin).tolist(),
    }
