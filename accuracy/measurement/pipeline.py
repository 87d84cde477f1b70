"""From an observed case to the rows of its tables: the numbers of every tensor and rank, and what observers found.

A case that raises, or that its parts cannot do, becomes one row with the reason.
"""

import importlib
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from accuracy.core.case import Case, Problem
from accuracy.core.errors import NotShared, RanksEnded, located
from accuracy.measurement import compute_device
from accuracy.measurement.observe import Bench, Observation, answers
from accuracy.measurement.rows import about_case, joined, metric_columns, position_columns
from accuracy.reference.cache import Cache
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, FAILED, OK, UNSUPPORTED, Columns, Row
from accuracy.runtime import arithmetic
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import RunRanks
from accuracy.variant.base import schedule_of
from accuracy.world.simulated import RankFailed

OF_STACKS = "accuracy.stack.measure"
"""The module whose `measured` gives the rows of a stack of layers; the first such case loads it."""


@dataclass(frozen=True)
class Measured:
    """A case's rows for `results/` and `positions/`, column by column, and those of its observers' tables (`steps/`,
    `hypotheses/`, `boundaries/`, `places/`, `logprobs/`), by name; traceback: of what the case raised."""

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
        self, experiment: str, reference_cache: Cache, run_ranks: RunRanks | None = None, batched: bool = True
    ) -> None:
        super().__init__(reference_cache, run_ranks, batched)
        self.experiment = experiment

    def unsupported(self, case: Case, reason: str) -> Measured:
        """Return the row of a case that its parts cannot do."""
        return self._unmeasured(case, UNSUPPORTED, reason)

    def failed(self, case: Case, reason: str) -> Measured:
        """Return the row of a case that was not measured to its end."""
        return self._unmeasured(case, FAILED, reason)

    def measure(self, case: Case) -> Measured:
        """Observe a case and return its rows; whatever goes wrong becomes a row with the reason."""
        try:
            with arithmetic.random_state_restored(), compute_device.single_threaded(case, self.device_of(case)):
                return self._measured(case)
        except RanksEnded:  # no further case can be measured with these ranks
            raise
        except NotShared as error:
            return self.unsupported(case, str(error))
        except (Exception, SystemExit) as error:  # some packages call exit()
            reason, text = _reason(error, case.problem), _traceback(error)
            out_of_memory = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        if out_of_memory:  # only here, where the error no longer holds the tensors
            self.forget()
        return replace(self.failed(case, reason), traceback=text)

    def _unmeasured(self, case: Case, status: str, reason: str) -> Measured:
        about = about_case(case, self.experiment, status, reason)
        return Measured({name: [value] for name, value in about.items()}, {})

    def _measured(self, case: Case) -> Measured:
        if case.stack is not None:
            of_stack: Measured = importlib.import_module(OF_STACKS).measured(self, case)
            return of_stack
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
        about["reference"] = self.reference_cache.method_for(case.problem, self.device_of(case))
        blocks, positions, broken = [], [], []
        for name in ALL_TENSORS:
            if name == "dsink" and not case.problem.sink_logits:
                continue
            if name not in compared:
                reason = schedule_of(case.variant.forward).missing(name)
                blocks.append(_block(1, {"tensor": name, "rank": ALL_RANKS, "status": UNSUPPORTED, "reason": reason}))
                continue
            length = case.world_size if name == "dsink" else case.problem.length(name)
            tokens = token_map("contiguous" if name == "dsink" else case.variant.sharding, length, case.world_size)
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


def _traceback(error: BaseException) -> str:
    """Nothing of a rank in another process, which writes its own."""
    if isinstance(error, RankFailed) and error.__cause__ is None:
        return ""
    return "".join(traceback.format_exception(error))
