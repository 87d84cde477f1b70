"""A world of one rank, in this process: what a function that the caller handed over needs no other process for."""

from collections.abc import Sequence
from typing import Any

from accuracy.core import given
from accuracy.core.case import Case
from accuracy.runtime import device
from accuracy.simulate.program import Ran, build_kernel, rank_program
from accuracy.world.base import Tensors
from accuracy.world.processes import ProcessesWorld, run_rank

NO_GROUP: Any = None  # a function is called with group=None; it asks nothing else of its world


def can(case: Case) -> bool:
    """Whether the case is one of a function given as an object, on one rank."""
    return case.world_size == 1 and str(dict(case.variant.options).get("fn", "")).startswith(given.PREFIX)


def run(case: Case, shards: Sequence[Tensors]) -> Ran:
    """out, lse, dq, dk, dv of the one rank, as `RunRanks`. Raises what the function raises."""
    program = rank_program(case, build_kernel(case), shards)
    with device.measured(case.device) as cost, device.poisoned(case.reruns.poison):
        results = run_rank(program, ProcessesWorld(0, 1, NO_GROUP))
    return Ran([results], cost)
