"""A case run again with something changed that must not change a bit: repeated, poisoned, with late receive buffers,
with another future.

The observer `repeats` (`accuracy.measurement.observe`): how many elements of each tensor and rank changed. The plain run's numbers
are not touched.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.errors import WrongResult
from accuracy.core.kinds import FromZero
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.repeats import Changes, Numbers, columns
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import Ran
from accuracy.world.base import Results, Tensors

GUARD_ELEMENTS = 4096  # NaN before and behind each input: more than any kernel's tile reads ahead
Counts = dict[str, dict[str, list[Any]]]  # tensor -> column -> number of each rank, then of all ranks together


@dataclass(frozen=True)
class Options:
    """What a case is run again for.

    repeat: so many more times as it is; poison: with unwritten memory, and memory around the inputs, full of NaN;
    unwaited: with receive buffers full of NaN until they have been waited for (simulated worlds only); future: with
    other keys and values behind a token (causal masks only).
    """

    repeat: FromZero = 0
    poison: bool = False
    unwaited: bool = False
    future: bool = False


def repeats_of(case: Case) -> int:
    """Return how many more times a case is run as it is."""
    return int((case.options_of("repeats") or {}).get("repeat") or 0)


def runs(case: Case, options: Options) -> int:
    """Return how many forwards and backwards the reruns take."""
    return options.repeat + options.poison + 2 * case.world_size * options.unwaited + options.future


def answer(observation: Observation, options: Options) -> Answer:
    """Count what changed in each rerun that is asked for. Raises what the run raises."""
    case, results = observation.case, observation.ran.results
    found = Counts()

    def note(column: str, each: list[dict[str, int]]) -> None:
        for name in each[0]:
            counted = [rank[name] for rank in each]
            found.setdefault(name, {})[column] = [*counted, sum(counted)]

    if options.repeat:
        again = (observation.again().results for _ in range(options.repeat))
        found |= columns(observation.ran.repeats or _repeated(results, again))
    if options.poison:
        note("poisoned", _compare(results, _poisoned(observation).results, _newly_nonfinite))
    if options.unwaited and case.world == "simulated":
        note("unwaited", _compare(results, observation.again(unwaited=True).results, _newly_nonfinite))
    if options.future and case.problem.causal:
        note("future_differs", _other_future(observation))
    return Answer(results=found)


def _repeated(results: Sequence[Results], again: Iterable[Sequence[Results]]) -> list[Numbers]:
    """Return what runs again changed on every rank, where this process runs them all."""
    ranks = [Changes(each) for each in results]
    for run, every in enumerate(again):
        for changes, own in zip(ranks, every, strict=True):
            changes.note(run, own)
    return [changes.numbers() for changes in ranks]


def _compare(
    results: Sequence[Results],
    again: Sequence[Results],
    changed: Callable[[int, str, Tensor, Tensor], Tensor],
    names: Sequence[str] = ALL_TENSORS,
) -> list[dict[str, int]]:
    """For each rank, the number of elements of each tensor that changed."""
    return [
        {
            name: int(changed(rank, name, x, y).sum())
            for name, x, y in zip(ALL_TENSORS, first, second, strict=False)
            if x is not None and y is not None and name in names
        }
        for rank, (first, second) in enumerate(zip(results, again, strict=True))
    ]


def _newly_nonfinite(rank: int, name: str, x: Tensor, y: Tensor) -> Tensor:
    return x.isfinite() & ~y.isfinite()


class Guarded:
    """A rank's tensors amid NaN; whoever writes beside them is found out."""

    def __init__(self, tensors: Tensors) -> None:
        self._pairs = [_amid_nan(x) for x in tensors]

    @property
    def tensors(self) -> Tensors:
        """Return copies of the tensors, each in the middle of a buffer of NaN."""
        return tuple(x for _, x in self._pairs)

    def check(self, rank: int) -> None:
        """Raises WrongResult where a NaN is gone."""
        for buffer, x in self._pairs:
            if int(buffer.isnan().sum()) < buffer.numel() - x.numel():
                raise WrongResult(f"rank {rank} wrote next to its inputs, outside of its tensors")


def _poisoned(observation: Observation) -> Ran:
    """Run the case with its inputs amid NaN, in a world whose fresh memory is NaN. Raises WrongResult."""
    guarded = [Guarded(rank) for rank in observation.shards]
    ran = observation.again([each.tensors for each in guarded], poison=True)
    for rank, each in enumerate(guarded):
        each.check(rank)
    return ran


def _amid_nan(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a buffer of NaN and, in its middle, a copy of x."""
    buffer = x.new_full((x.numel() + 2 * GUARD_ELEMENTS,), torch.nan)
    middle = buffer[GUARD_ELEMENTS : GUARD_ELEMENTS + x.numel()].view(x.shape)
    middle.copy_(x)
    return buffer, middle


def other_future(case: Case, rank: int, shards: Tensors) -> Tensors:
    """Return a rank's q, k, v, dout with other keys and values from a token on."""
    q, k, v, dout = shards
    keys = token_map(case.variant.sharding, case.problem.seqlen, case.world_size)[rank] < _first_changed(case)
    sign = torch.where(keys.to(k.device), 1.0, -1.0).to(k.dtype)[:, None, None]
    return q, k * sign, v * sign, dout


def _first_changed(case: Case) -> int:
    return 5 * case.problem.seqlen // 8 + 1  # a key inside a shard, whether there are 1, 2, 4 or 8 of them


def _other_future(observation: Observation) -> list[dict[str, int]]:
    """Other keys and values from a token on: out, lse and dq of the tokens before it see none of them."""
    case, results = observation.case, observation.ran.results
    problem, layout = case.problem, case.variant.sharding
    rows = token_map(layout, problem.queries, case.world_size) + problem.query_offset < _first_changed(case)
    past = [row.to(results[rank][0].device) for rank, row in enumerate(rows)]  # type: ignore[union-attr]
    other = [other_future(case, rank, each) for rank, each in enumerate(observation.shards)]

    def leaked(rank: int, name: str, x: Tensor, y: Tensor) -> Tensor:
        return (x != y) & (past[rank] if name == "lse" else past[rank][:, None, None])

    return _compare(results, observation.again(other, future=True).results, leaked, ("out", "lse", "dq"))
