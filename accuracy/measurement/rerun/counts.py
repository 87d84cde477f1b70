"""A case run again with something changed that must not change a bit: repeated, poisoned, with late receive buffers,
with another future.

In: the case, the shards of its inputs and its results. Out: how many elements of each tensor and rank changed. The
plain run's numbers are not touched.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.case import Case, Reruns
from accuracy.core.errors import WrongResult
from accuracy.measurement.counting import moved
from accuracy.measurement.rerun.repeats import Changes, Told, columns
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import Ran, RunRanks
from accuracy.world.base import Results, Tensors

GUARD_ELEMENTS = 4096  # NaN before and behind each input: more than any kernel's tile reads ahead
Counts = dict[str, dict[str, list[Any]]]  # tensor -> column -> number of each rank, then of all


def counts(case: Case, shards: Sequence[Tensors], ran: Ran, run_ranks: RunRanks) -> Counts:
    """What changed in each rerun that the case asks for. ran: its results where they are to be compared. Raises what
    the run raises."""
    asked, plain, results = case.reruns, replace(case, reruns=Reruns()), ran.results
    where = next(x.device.type for x in results[0] if x is not None)
    found: Counts = {}

    def run(changed: Case, given: Sequence[Tensors]) -> Ran:
        again = run_ranks(changed, given)
        return replace(again, results=moved(again.results, where))

    def note(column: str, each: list[dict[str, int]]) -> None:
        for name in each[0]:
            counted = [rank[name] for rank in each]
            found.setdefault(name, {})[column] = [*counted, sum(counted)]

    if asked.repeat:
        again = (run(plain, shards).results for _ in range(asked.repeat))
        found |= columns(ran.repeats or _repeated(results, again))
    if asked.poison:
        note("poisoned", _compare(results, [_poisoned(plain, shards, run).results], _newly_nonfinite))
    if asked.unwaited and case.world == "simulated":
        late = run(replace(plain, reruns=Reruns(unwaited=True)), shards)
        note("unwaited", _compare(results, [late.results], _newly_nonfinite))
    if asked.future and case.problem.causal:
        note("future_differs", _other_future(plain, shards, results, run))
    return found


def _repeated(results: Sequence[Results], again: Iterable[Sequence[Results]]) -> list[Told]:
    """What every rank has to tell where this process runs them all."""
    ranks = [Changes(each) for each in results]
    for run, every in enumerate(again):
        for changes, mine in zip(ranks, every, strict=True):
            changes.note(run, mine)
    return [changes.told() for changes in ranks]


def _compare(
    results: Sequence[Results],
    again: Sequence[Sequence[Results]],
    changed: Callable[[int, str, Tensor, Tensor], Tensor],
    names: Sequence[str] = ALL_TENSORS,
) -> list[dict[str, int]]:
    """For each rank, the number of elements of each tensor that changed in any of the reruns."""
    counted = []
    for rank, first in enumerate(results):
        here = {}
        for place, name in enumerate(ALL_TENSORS[: len(first)]):
            x = first[place]
            if x is None or name not in names:
                continue
            masks = [changed(rank, name, x, run[rank][place]) for run in again]  # type: ignore[arg-type]
            here[name] = int(torch.stack(masks).any(0).sum())
        counted.append(here)
    return counted


def _newly_nonfinite(rank: int, name: str, x: Tensor, y: Tensor) -> Tensor:
    return x.isfinite() & ~y.isfinite()


class Guarded:
    """A rank's tensors amid NaN; whoever writes beside them is found out."""

    def __init__(self, tensors: Tensors) -> None:
        self._pairs = [_amid_nan(x) for x in tensors]

    @property
    def tensors(self) -> Tensors:
        """Copies of the tensors, each in the middle of a buffer of NaN."""
        return tuple(x for _, x in self._pairs)

    def check(self, rank: int) -> None:
        """Raises WrongResult where a NaN is gone."""
        for buffer, x in self._pairs:
            if int(buffer.isnan().sum()) < buffer.numel() - x.numel():
                raise WrongResult(f"rank {rank} wrote next to its inputs, outside of its tensors")


def _poisoned(case: Case, shards: Sequence[Tensors], run_ranks: RunRanks) -> Ran:
    """The run with its inputs amid NaN, in a world whose fresh memory is NaN. Raises WrongResult."""
    guarded = [Guarded(rank) for rank in shards]
    ran = run_ranks(replace(case, reruns=Reruns(poison=True)), [each.tensors for each in guarded])
    for rank, each in enumerate(guarded):
        each.check(rank)
    return ran


def _amid_nan(x: Tensor) -> tuple[Tensor, Tensor]:
    """A buffer of NaN and, in its middle, a copy of x."""
    buffer = x.new_full((x.numel() + 2 * GUARD_ELEMENTS,), torch.nan)
    middle = buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + x.numel()].view(x.shape)
    middle.copy_(x)
    return buffer, middle


def other_future(case: Case, rank: int, shards: Tensors) -> Tensors:
    """A rank's q, k, v, dout with other keys and values from a token on."""
    q, k, v, dout = shards
    keys = token_map(case.variant.sharding, case.problem.seqlen, case.world_size)[rank] < _first_changed(case)
    sign = torch.where(keys.to(k.device), 1.0, -1.0).to(k.dtype)[:, None, None]
    return q, k * sign, v * sign, dout


def _first_changed(case: Case) -> int:
    return 5 * case.problem.seqlen // 8 + 1  # a key inside a shard, whether there are 1, 2, 4 or 8 of them


def _other_future(
    case: Case, shards: Sequence[Tensors], results: Sequence[Results], run_ranks: RunRanks
) -> list[dict[str, int]]:
    """Other keys and values from a token on: out, lse and dq of the tokens before it see none of them."""
    problem, layout = case.problem, case.variant.sharding
    rows = token_map(layout, problem.queries, case.world_size) + problem.query_offset < _first_changed(case)
    changed = replace(case, reruns=Reruns(future=True))
    past = [row.to(results[rank][0].device) for rank, row in enumerate(rows)]  # type: ignore[union-attr]
    other = [other_future(case, rank, each) for rank, each in enumerate(shards)]

    def leaked(rank: int, name: str, x: Tensor, y: Tensor) -> Tensor:
        return (x != y) & (past[rank] if name == "lse" else past[rank][:, None, None])

    return _compare(results, [run_ranks(changed, other).results], leaked, ("out", "lse", "dq"))
