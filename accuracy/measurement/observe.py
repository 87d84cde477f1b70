"""Observe one case: draw its inputs, compute its reference, run its ranks, and compare what they returned.

case -> inputs -> reference, single device -> shards -> variant (kernel) in its world -> numbers -> Observation

This is the one file that sees every stage. It writes no table, starts no process and makes no sentence. A question
that goes beyond the errors is an observer: a module with `answer(observation, options)`, which the configuration names
(`observers=[explain]`) and which this file does not know.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case, Problem
from accuracy.inputs import drawing
from accuracy.inputs.drawing import Inputs
from accuracy.measurement import compute_device
from accuracy.measurement.compare import Compared, blanked, compare
from accuracy.measurement.targets import Targets
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.results.table import RESULTS_SCHEMA, SIDE_TABLES, Columns, Row
from accuracy.runtime import given_mask
from accuracy.runtime.sharding import cut, sharding_of
from accuracy.simulate.program import Mode, Ran, RunRanks, simulate
from accuracy.world.base import Results, Tensors


@dataclass(frozen=True)
class Observation:
    """What was seen of one case.

    shards: (q, k, v, dout) of every rank; ran: out, lse, dq, dk, dv of every rank and the cost of the run; results:
    those tensors, zero where tokens are padding; compared: each tensor's numbers; bench: what observed the case.
    """

    case: Case
    targets: Targets
    shards: Sequence[Tensors]
    ran: Ran
    results: Sequence[Results]
    compared: Mapping[str, Compared]
    bench: "Bench"

    def again(self, shards: Sequence[Tensors] | None = None, **mode: Any) -> Ran:
        """Run the case's ranks once more, with other shards or in another `Mode`, and return their results."""
        ran = self.bench.run_ranks(self.case, self.shards if shards is None else shards, Mode(**mode))
        return replace(ran, results=compute_device.move_results(ran.results, self.bench.device_of(self.case)))


@dataclass(frozen=True)
class Answer:
    """What an observer found.

    results: by tensor, further columns of the results: a value for each rank and one of all ranks together, or that of
    all ranks alone; positions: by
    tensor, further columns by bin of the sequence; tables: rows of tables of its own, by the table's name.
    """

    results: Mapping[str, Columns] = field(default_factory=dict)
    positions: Mapping[str, Columns] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


class Observer(Protocol):
    """One question about a case; a module. `Options`: the frozen dataclass of its options, if it has any."""

    def answer(self, observation: Observation, options: Any) -> Answer:
        """Answer the question from what was seen of the case; nothing that was seen is changed."""
        ...


def answers(observation: Observation) -> Iterator[Answer]:
    """Ask every observer of the case; only these modules are loaded. Raises what they raise, and TypeError or
    ValueError where an answer cannot be stored."""
    for part in observation.case.observers:
        observer: Any = plugins.load(part.source)
        answer = observer.answer(observation, plugins.build_options(observer, part.options))
        _check(part.name, answer, observation.case.world_size + 1)
        yield answer


def _check(name: str, answer: Any, ranks: int) -> None:
    if not isinstance(answer, Answer):
        raise TypeError(f"observer {name} returned {type(answer).__name__}; return {Answer.__module__}.Answer")
    for tensor, columns in answer.results.items():
        for column, values in columns.items():
            if column not in RESULTS_SCHEMA.names:
                raise ValueError(f"observer {name}: results have no column {column}; give it in a table of its own")
            if len(values) not in (ranks, 1):
                raise ValueError(
                    f"observer {name}: {len(values)} values of {column} of {tensor}; one a rank and one of all: {ranks}"
                )
    for table, rows in answer.tables.items():
        if not table.isidentifier():
            raise ValueError(f"observer {name}: table {table!r} is no name of a folder; use letters, digits and _")
        if table not in SIDE_TABLES:
            pa.Table.from_pylist([*rows])  # raises here, in the case at hand, what the file would raise


class Bench:
    """Observes cases one after another, and keeps the inputs and targets that neighbouring cases share. A worker's is a
    `Pipeline`, which makes rows of them.

    batched: whether a simulated world computes several ranks in one kernel call where that changes no bit; alone:
    whether no other process of this run is on the GPU.
    """

    def __init__(self, run_ranks: RunRanks | None = None, batched: bool = True, alone: bool = False) -> None:
        self.alone = alone
        self.run_ranks = run_ranks or partial(simulate, batched=batched)
        self._drawn: tuple[object, dict[str, Tensor]] | None = None
        self._targets: tuple[object, Targets] | None = None

    def observe(self, case: Case) -> Observation:
        """Run a case on its inputs and compare what its ranks return. Raises what the run raises, and WrongResult where
        a tensor has another shape or dtype."""
        targets = self.targets(case)
        targets.single_device(case)  # outside the measured stretch; it also warms the kernel up
        shards = shards_of(case, targets)
        ran = self.run_ranks(case, shards, Mode(repeat=repeats_of(case)))  # real ranks count their own changes
        ran = replace(ran, results=compute_device.move_results(ran.results, self.device_of(case)))
        results = blanked(case, ran.results)
        return Observation(case, targets, shards, ran, results, compare(case, targets, results), self)

    def targets(self, case: Case) -> Targets:
        """Return the inputs, the reference and all else that a case is compared with; neighbouring cases share them."""
        key = shared(case), self.device_of(case)
        if self._targets is None or self._targets[0] != key:
            self._targets = None  # free the old ones first
            self._targets = key, self.new_targets(case)
        return self._targets[1]

    def new_targets(self, case: Case) -> Targets:
        """Make the inputs, the reference and all else that a case of this problem, seed and dtype is compared with."""
        inputs, reference = self._inputs_and_reference(case, case.said_dtype)
        unquantised = self._inputs_and_reference(case, case.dtype)[1] if case.inputs_dtype else None
        return Targets.of(inputs, reference, case.dtype, case.problem.sink_logits, unquantised, case.device)

    def device_of(self, case: Case) -> str:
        """Return where inputs are rounded, the reference is computed and results are compared: the CPU for a small
        problem. Kernels run on the case's device."""
        return compute_device.compute_device(case, self.alone)

    def _inputs_and_reference(self, case: Case, dtype: str) -> tuple[Inputs, Reference]:
        key = case.inputs, case.problem, case.seed
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, drawing.draw(*key)
        inputs = drawing.round_to(self._drawn[1], dtype, self.device_of(case))
        return inputs, reference_of(case.problem, inputs)


def reference_of(problem: Problem, inputs: Inputs) -> Reference:
    """The reference of a problem's inputs, with its masks and its sinks."""
    return float64.attention(
        *inputs.tensors, scale=problem.softmax_scale, **problem.seen_by, softcap=problem.softcap,
        sinks=problem.sink_logits, mask=given_mask.in_four(problem, inputs.q.dtype, inputs.q.device),
        of_bias=given_mask.of_gradient(problem) or (1, 1, 0, 0),
    )  # fmt: skip


def repeats_of(case: Case) -> int:
    """Return how many more times a case is run as it is."""
    return int((case.options_of("repeats") or {}).get("repeat") or 0)


def shards_of(case: Case, targets: Targets) -> list[Tensors]:
    """Return (q, k, v, dout) of every rank."""
    shards = [cut(x, sharding_of(case), case.world_size) for x in targets.given.tensors]
    return list(zip(*shards, strict=True))


def shared(case: Case) -> tuple[object, ...]:
    """Return what cases that share targets have in common."""
    return case.problem, case.inputs, case.seed, case.said_dtype, case.device
