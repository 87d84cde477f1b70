"""What do runs again change of one rank's tensors? Counted by the rank itself, where its world has one process a rank.

In: the rank's first results and those of every further run. Out: plain numbers of each rank, and the columns of the
table that they make together. No more than one run is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accuracy.core.case import Case
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime import device
from accuracy.simulate.program import PLAIN, Mode, Ran, build_kernel, rank_program, simulate
from accuracy.world.alone import group_of_one
from accuracy.world.base import Results, Tensors
from accuracy.world.processes import ProcessesWorld, run_rank

Numbers = dict[str, dict[str, Any]]
"""By tensor: elements that differed in any run, the runs in which one did, the largest change."""


class Changes:
    """What further runs change of one rank's tensors."""

    def __init__(self, first: Results) -> None:
        named = dict(zip(ALL_TENSORS, first, strict=False))
        self._first = {name: x for name, x in named.items() if x is not None}
        self._differing = {name: torch.zeros_like(x, dtype=torch.bool) for name, x in self._first.items()}
        self._runs: dict[str, list[int]] = {name: [] for name in self._first}
        self._sizes = dict.fromkeys(self._first, 0.0)

    def note(self, run: int, results: Results) -> None:
        """Note what the results of a further run changed."""
        for name, y in zip(ALL_TENSORS, results, strict=False):
            x = self._first.get(name)
            if x is None or y is None or torch.equal(x, y):
                continue
            changed = (x != y) & ~(x.isnan() & y.isnan())
            if not changed.any():
                continue
            change = (y.double() - x.double())[changed].abs().max() / x.double().square().mean().sqrt()
            self._differing[name] |= changed
            self._sizes[name] = max(self._sizes[name], float(change.nan_to_num(nan=torch.inf)))
            self._runs[name].append(run)

    def numbers(self) -> Numbers:
        """Return what changed in all runs that were noted."""
        return {
            name: {"elements": int(self._differing[name].sum()), "runs": runs, "size": self._sizes[name]}
            for name, runs in self._runs.items()
        }


def copies(results: Results) -> Results:
    """Copy the results: the next run of a function may fill the buffers that hold them again."""
    return tuple(None if x is None else x.clone() for x in results)


def repeat(first: Results, again: Callable[[], Results], count: int) -> Numbers:
    """Run one rank `count` times again, and return what changed."""
    changes = Changes(first)
    for run in range(count):
        changes.note(run, again())
    return changes.numbers()


def run_alone(case: Case, shards: Sequence[Tensors], mode: Mode = PLAIN) -> Ran:
    """Run a case in this process: its simulated ranks, or its one rank in a group of its own. Raises what that does."""
    if case.world == "simulated":
        return simulate(case, shards, mode)
    program = rank_program(case, build_kernel(case), shards)
    with group_of_one(case.device) as group:
        world = ProcessesWorld(0, 1, group)
        with device.measured(case.device) as cost, device.poisoned(mode.poison):
            results = run_rank(program, world)
        results = copies(results)
        again = repeat(results, lambda: run_rank(program, world), mode.repeat)
    return Ran([results], cost, [again])


def columns(ranks: Sequence[Numbers]) -> dict[str, dict[str, list[Any]]]:
    """Return for every tensor, by rank and for all ranks, the elements that differed in any run, the runs that
    differed, and the largest change over the tensor's root mean square."""
    found = {}
    for name in ranks[0]:
        each = [rank[name] for rank in ranks]
        elements, sizes = [one["elements"] for one in each], [one["size"] for one in each]
        runs = [one["runs"] for one in each]
        found[name] = {
            "repeats_differ": [*elements, sum(elements)],
            "repeats_runs": [*map(len, runs), len(set().union(*runs))],
            "repeats_size": [*sizes, max(sizes)],
        }
    return found
