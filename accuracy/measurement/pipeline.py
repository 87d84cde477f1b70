"""From a case to its rows, one call per arrow; the only file that sees every stage.

case -> inputs -> world -> variant (kernel) -> reference -> metrics -> rows of the table
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from accuracy.core.case import Case, Part, Problem, Reruns
from accuracy.core.errors import NotShared, RanksEnded
from accuracy.core.frames import located
from accuracy.inputs import base as inputs_base
from accuracy.inputs.base import Inputs
from accuracy.measurement import compare as comparison
from accuracy.measurement import counting, other_path, padding, pairs, places
from accuracy.measurement.hypothesis import search
from accuracy.measurement.rerun import counts as reruns
from accuracy.measurement.rerun import invariance, trace
from accuracy.measurement.rows import about_case, joined, metric_columns, position_columns
from accuracy.measurement.targets import Targets
from accuracy.reference.cache import Cache
from accuracy.reference.float64 import Reference
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, FAILED, OK, UNSUPPORTED, Columns, Row
from accuracy.runtime import kept
from accuracy.runtime.sharding import cut, token_map
from accuracy.simulate.program import Ran, RunRanks, simulate
from accuracy.variant.base import schedule_of
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """A case's rows for `results/` and `positions/`, column by column, and, where the case asks for them, for `steps/`,
    `hypotheses/`, `boundaries/`, `places/` and `logprobs/`; traceback: of what it raised."""

    results: Columns
    positions: Columns
    steps: Sequence[Row] = ()
    hypotheses: Sequence[Row] = ()
    boundaries: Sequence[Row] = ()
    places: Sequence[Row] = ()
    logprobs: Sequence[Row] = ()
    traceback: str = ""

    @property
    def rows(self) -> list[Row]:
        """The results row by row."""
        return [dict(zip(self.results, row, strict=True)) for row in zip(*self.results.values(), strict=True)]

    @property
    def status(self) -> str:
        """How the case ended."""
        return str(self.results["status"][0])


def shared(case: Case) -> tuple[object, ...]:
    """What cases that share targets have in common; a stack's single device belongs to one kernel."""
    whole = case.problem, case.inputs, case.seed, case.said_dtype, case.device
    return whole if case.stack is None else (case.stack, *whole, case.kernel)


class Pipeline:
    """Measures cases one after another; keeps what neighbours in the grid share."""

    def __init__(self, experiment: str, reference_cache: Cache, run_ranks: RunRanks = simulate) -> None:
        self.experiment = experiment
        self.reference_cache = reference_cache
        self.run_ranks = run_ranks
        self._drawn: tuple[object, dict[str, Tensor]] | None = None
        self._targets: tuple[object, Any] | None = None
        self._others = other_path.OtherPaths()

    def unsupported(self, case: Case, reason: str) -> Measured:
        """The row of a case that its parts cannot do."""
        return self._unmeasured(case, UNSUPPORTED, reason)

    def failed(self, case: Case, reason: str) -> Measured:
        """The row of a case that was not measured to its end."""
        return self._unmeasured(case, FAILED, reason)

    def measure(self, case: Case) -> Measured:
        """One step after another; whatever goes wrong becomes a row with the reason."""
        try:
            with kept.random_state(), counting.threads(case, self._place(case)):
                return self._measured(case)
        except RanksEnded:  # no further case can be measured with these ranks
            raise
        except NotShared as error:
            return self.unsupported(case, str(error))
        except (Exception, SystemExit) as error:  # some packages call exit()
            reason, text = _reason(error, case.problem), _traceback(error)
            out_of_memory = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        if out_of_memory:  # only here, where the error no longer holds the tensors
            self._targets = None
            torch.cuda.empty_cache()
        return replace(self.failed(case, reason), traceback=text)

    def _unmeasured(self, case: Case, status: str, reason: str) -> Measured:
        about = about_case(case, self.experiment, status, reason)
        return Measured({name: [value] for name, value in about.items()}, {})

    def _measured(self, case: Case) -> Measured:
        targets = self.targets(case)
        targets.single_device(case)  # outside the measured stretch; it also warms the kernel up
        layout = case.variant.sharding, case.world_size
        shards = [cut(x, *layout) for x in targets.given.tensors]
        by_rank = list(zip(*shards, strict=True))
        ran = self.run_ranks(replace(case, reruns=Reruns(repeat=case.reruns.repeat)), by_rank)
        ran = replace(ran, results=counting.moved(ran.results, self._place(case)))
        counts = reruns.counts(case, by_rank, ran, self.run_ranks)
        measured = self._compare(case, targets, replace(ran, results=padding.blanked(case, ran.results)), counts)
        steps = trace.steps(*self._to_trace(case, targets, by_rank)) if case.reruns.trace else []
        steps = [*steps, *pairs.rows(case, targets, ran.results)]
        return replace(
            measured, steps=steps, boundaries=invariance.rows(case, targets), places=places.rows(case, targets)
        )

    def _to_trace(
        self, case: Case, targets: Targets, shards: Sequence[Tensors]
    ) -> tuple[Case, Targets, Sequence[Tensors]]:
        """The case; with padding, that of the length that ranks share, whose last tokens are drawn like others: a trace
        tells rows apart by their bits."""
        if case.problem.padding is None or case.inputs.name == "captured":
            return case, targets, shards
        problem = replace(case.problem.padded(case.variant.sharding, case.world_size), padding=None)
        longer = replace(case, problem=problem)
        inputs, reference = self._referred(longer, case.said_dtype)
        found = Targets.of(inputs, reference, case.dtype, problem.sink_logits, device=case.device)
        cuts = [cut(x, case.variant.sharding, case.world_size) for x in found.given.tensors]
        return longer, found, list(zip(*cuts, strict=True))

    def targets(self, case: Case) -> Targets:
        """Inputs, reference and all that is compared with, for the case's problem, seed and dtype."""

        def made() -> Targets:
            inputs, reference = self._referred(case, case.said_dtype)
            unquantised = self._referred(case, case.dtype)[1] if case.inputs_dtype else None
            return Targets.of(inputs, reference, case.dtype, case.problem.sink_logits, unquantised, case.device)

        return self._kept(case, made)

    def _referred(self, case: Case, dtype: str) -> tuple[Inputs, Reference]:
        """The case's inputs, rounded to a dtype, and their reference."""
        inputs = inputs_base.round_to(self._draw(case.inputs, case.problem, case.seed), dtype, self._place(case))
        return inputs, self.reference_cache.reference(case.problem, case.inputs, case.seed, dtype, inputs)

    def _place(self, case: Case) -> str:
        return counting.place(case, self.reference_cache.method)

    def _kept(self, case: Case, make: Callable[[], T]) -> T:
        """The targets of the last case where this one shares them, else new ones."""
        key = shared(case), self._place(case)
        if self._targets is None or self._targets[0] != key:
            self._targets = None  # free the old ones first
            self._targets = key, make()
        targets: T = self._targets[1]
        return targets

    def _draw(self, part: Part, problem: Problem, seed: int) -> dict[str, Tensor]:
        key = (part, problem, seed)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, inputs_base.draw(part, problem, seed)
        return self._drawn[1]

    def _compare(self, case: Case, targets: Targets, ran: Ran, counts: reruns.Counts) -> Measured:
        about = about_case(case, self.experiment, OK, "")
        about["reference"] = self.reference_cache.method_for(case.problem, self._place(case))
        found = comparison.compare(case, targets, ran.results)
        explained = search.rows(case, targets, ran.results, found) if case.reruns.explain else []
        drifts = other_path.columns(case, targets, ran.results, self._others)
        blocks, positions, broken = [], [], []
        for name in ALL_TENSORS:
            if name == "dsink" and not case.problem.sink_logits:
                continue
            if name not in found:
                reason = schedule_of(case.variant.forward).missing(name)
                blocks.append(_block(1, {"tensor": name, "rank": ALL_RANKS, "status": UNSUPPORTED, "reason": reason}))
                continue
            length = case.world_size if name == "dsink" else case.problem.length(name)
            tokens = token_map("contiguous" if name == "dsink" else case.variant.sharding, length, case.world_size)
            columns = metric_columns(case, found[name], tokens, counts.get(name, {}))
            of_ranks, of_bins = drifts.get(name, ({}, {}))
            same = {"tensor": name, "status": OK, "reason": "", **vars(ran.cost)}
            blocks.append({**_block(len(columns["rank"]), same), **columns, **of_ranks})
            positions.append({**position_columns(case, name, found[name], tokens, length), **of_bins})
            if count := columns["nonfinite"][-1]:
                broken.append(f"{count} non-finite values in {name}")
        varying = joined(blocks)
        rows = len(varying["tensor"])
        failed = _block(rows, {"status": FAILED, "reason": "; ".join(broken)}) if broken else {}
        return Measured({**_block(rows, about), **varying, **failed}, joined(positions), hypotheses=explained)


def _block(rows: int, about: Row) -> dict[str, Sequence[Any]]:
    """So many rows of the same."""
    return {name: [value] * rows for name, value in about.items()}


def _reason(error: BaseException, problem: Problem) -> str:
    """One line, without addresses that would differ from run to run; where it names both counts of heads, a remedy. One
    head of k and v has the size that broadcasts, and a 1 is in many a message."""
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
