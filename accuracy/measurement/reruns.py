"""A case run again with something changed that must not change a bit: repeated, poisoned, with late receive buffers,
with another future.

The observer `repeats` (`accuracy.measurement.observe`): how many elements of each tensor and rank changed. The plain
run's numbers are not touched.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FromZero, rounding_band
from accuracy.core.errors import WrongResult
from accuracy.measurement.observe import Answer, Observation
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime import device
from accuracy.runtime.sharding import sharding_of, token_map
from accuracy.simulate.program import PLAIN, Mode, Ran, build_kernel, rank_program, simulate
from accuracy.world.base import Results, Tensors
from accuracy.world.processes import ProcessesWorld, group_of_one, run_rank

Numbers = dict[str, dict[str, Any]]
"""By tensor: elements that differed in any run, the runs in which one did, the largest change."""


def copies(results: Results) -> Results:
    """Copy the results: the next run of a function may fill the buffers that hold them again."""
    return tuple(None if x is None else x.clone() for x in results)


def check_other_calls(case: Case, shard: Tensors, kept: Results, copied: Results, world: ProcessesWorld) -> None:
    """Call a function of one rank, whose results were `kept` and copied, with other inputs, strides and another scale;
    nothing is called where the case is not run in poisoned memory, too. Raises WrongResult where the results are not
    those of the call."""
    if not (case.options_of("repeats") or {}).get("poison"):
        return
    others = tuple(-x.flip(1) for x in shard)
    found = run_rank(rank_program(case, build_kernel(case), [others]), world)
    check_kept(kept, copied)
    if case.problem.seqlen > 1:
        check_other(copied, found)
    check_strides(case, shard, copied, world)
    check_scale(case, shard, copied, world)


def check_kept(kept: Results, copied: Results) -> None:
    """Raise WrongResult where a call with other inputs changed the tensors that an earlier call had returned: they are
    views of a buffer that is filled again."""
    for name, x, y in zip(ALL_TENSORS, kept, copied, strict=False):
        if x is not None and y is not None and not torch.equal(x.nan_to_num(), y.nan_to_num()):
            raise WrongResult(f"{name} of one call is overwritten by the next call")


def check_other(results: Results, others: Results) -> None:
    """Raise WrongResult where other inputs gave a tensor of the same bits: it is what an earlier call left."""
    for name, x, y in zip(ALL_TENSORS, results, others, strict=False):
        if x is not None and y is not None and x.count_nonzero() > 1 and torch.equal(x, y):
            raise WrongResult(f"{name} of other inputs is that of the call before")


def check_strides(case: Case, shard: Tensors, results: Results, world: ProcessesWorld) -> None:
    """Raise WrongResult where tensors of the same values in another order of memory give other results, by more than
    rounding."""
    strided = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in shard)
    again = _run_if_taken(case, strided, world)
    _check_alike(case, results, again, "{} of tensors of other strides (heads before tokens) is {:.2g} off")


def check_scale(case: Case, shard: Tensors, results: Results, world: ProcessesWorld) -> None:
    """Raise WrongResult where another scale gives the bits of the call before, but not so in two copies of the
    sequence, a shape that no call had. A function that knows no scale gives the same bits in both."""
    other = replace(case, problem=replace(case.problem, softmax_scale=2 * case.problem.softmax_scale))
    scaled = _run_if_taken(other, shard, world)
    if scaled and scaled[0] is not None and results[0] is not None and torch.equal(scaled[0], results[0]):
        twice = _run_if_taken(other, tuple(torch.cat([x, x]) for x in shard), world)
        of_one = tuple(None if x is None else x[: len(x) // 2] for x in twice or ())
        _check_alike(case, of_one, scaled, "{} of another softmax_scale is that of the call before ({:.2g} off)")


def _run_if_taken(case: Case, shard: Tensors, world: ProcessesWorld) -> Results:
    """Run a rank with tensors that a function may refuse; return nothing where it does."""
    try:
        return run_rank(rank_program(case, build_kernel(case), [shard]), world)
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
        return ()


def _check_alike(case: Case, right: Results, found: Results, message: str) -> None:
    """Raise WrongResult, with the tensor's name and how far it is off, where found is off by more than rounding."""
    for name, x, y in zip(ALL_TENSORS, right, found, strict=False):
        if x is None or y is None or not x.isfinite().all():
            continue
        off = float((y.double() - x.double()).norm() / x.double().norm().clamp(min=1e-300))
        if not off <= 2 * max(rounding_band(name, case.dtype), rounding_band("out", case.dtype)):
            raise WrongResult(message.format(name, off))


def repeated(results: Sequence[Results], again: Iterable[Sequence[Results]]) -> list[Numbers]:
    """Return what runs again changed on each of the ranks that this process runs."""
    first = [{name: x for name, x in zip(ALL_TENSORS, each, strict=False) if x is not None} for each in results]
    differing = [{name: torch.zeros_like(x, dtype=torch.bool) for name, x in named.items()} for named in first]
    found: list[Numbers] = [{name: {"elements": 0, "runs": [], "size": 0.0} for name in named} for named in first]
    for run, every in enumerate(again):
        for rank, own in enumerate(every):
            for name, y in zip(ALL_TENSORS, own, strict=False):
                x = first[rank].get(name)
                if x is None or y is None or torch.equal(x, y):
                    continue
                changed = (x != y) & ~(x.isnan() & y.isnan())
                if not changed.any():
                    continue
                exact = x.double()
                size = exact[changed].abs().clamp(min=float(exact.square().mean().sqrt()))
                change = ((y.double() - exact)[changed].abs() / size).max()
                differing[rank][name] |= changed
                noted = found[rank][name]
                noted["elements"] = int(differing[rank][name].sum())
                noted["size"] = max(noted["size"], float(change.nan_to_num(nan=torch.inf)))
                noted["runs"].append(run)
    return found


def run_alone(
    case: Case, shards: Sequence[Tensors], mode: Mode = PLAIN, group: Callable[[], dist.ProcessGroup] | None = None
) -> Ran:
    """Run a case in this process: its simulated ranks, or its one rank in a group of its own, or in what `group`
    returns. Raises what that does."""
    if case.world == "simulated":
        return simulate(case, shards, mode)
    program = rank_program(case, build_kernel(case), shards)
    with group_of_one(case.device) if group is None else nullcontext(group()) as own:
        world = ProcessesWorld(0, 1, own)
        with device.measured(case.device) as cost, device.poisoned(mode.poison):
            results = run_rank(program, world)
        kept, results = results, copies(results)
        if mode.repeat:
            check_other_calls(case, shards[0], kept, results, world)
        again = repeated([results], ([run_rank(program, world)] for _ in range(mode.repeat)))
    return Ran([results], cost, again)


def columns(ranks: Sequence[Numbers]) -> dict[str, dict[str, list[Any]]]:
    """Return for every tensor, by rank and for all ranks, the elements that differed in any run, the runs that
    differed, and the largest change, over the element's size or the tensor's root mean square, whichever is larger: a
    sum in another order moves a large element by a spacing, and no race is told from that."""
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


def runs(case: Case, options: Options) -> int:
    """Return how many forwards and backwards the reruns take: `unwaited` runs every rank's coroutine by itself."""
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
        found |= columns(observation.ran.repeats or repeated(results, again))
    if options.poison:
        guarded = [Guarded(rank) for rank in observation.shards]
        ran = observation.again([each.tensors for each in guarded], poison=True)
        for rank, each in enumerate(guarded):
            each.check(rank)
        note("poisoned", _compare(results, ran.results, _newly_nonfinite))
    if options.unwaited and case.world == "simulated":
        note("unwaited", _compare(results, observation.again(unwaited=True).results, _newly_nonfinite))
    if options.future and case.problem.causal:
        note("future_differs", _other_future(observation))
    return Answer(results=found)


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
    """A rank's tensors amid NaN; whoever writes beside them is found out. tensors: copies, each in the middle of a
    buffer of NaN."""

    def __init__(self, tensors: Tensors) -> None:
        self._buffers = [x.new_full((x.numel() + 2 * GUARD_ELEMENTS,), torch.nan) for x in tensors]
        inside = slice(GUARD_ELEMENTS, -GUARD_ELEMENTS)
        pairs = zip(self._buffers, tensors, strict=True)
        self.tensors = tuple(buffer[inside].view(x.shape).copy_(x) for buffer, x in pairs)

    def check(self, rank: int) -> None:
        """Raises WrongResult where a NaN is gone."""
        for buffer in self._buffers:
            if int(buffer.isnan().sum()) < 2 * GUARD_ELEMENTS:
                raise WrongResult(f"rank {rank} wrote next to its inputs, outside of its tensors")


def other_future(case: Case, rank: int, shards: Tensors) -> Tensors:
    """Return a rank's q, k, v, dout with other keys and values from a token on."""
    q, k, v, dout = shards
    keys = token_map(sharding_of(case), case.problem.seqlen, case.world_size)[rank] < _first_changed(case)
    sign = torch.where(keys.to(k.device), 1.0, -1.0).to(k.dtype)[:, None, None]
    return q, k * sign, v * sign, dout


def _first_changed(case: Case) -> int:
    return 5 * case.problem.seqlen // 8 + 1  # a key inside a shard, whether there are 1, 2, 4 or 8 of them


def _other_future(observation: Observation) -> list[dict[str, int]]:
    """Other keys and values from a token on: out, lse and dq of the tokens before it see none of them."""
    case, results = observation.case, observation.ran.results
    problem, layout = case.problem, sharding_of(case)
    rows = token_map(layout, problem.queries, case.world_size) + problem.query_offset < _first_changed(case)
    past = [row.to(results[rank][0].device) for rank, row in enumerate(rows)]  # type: ignore[union-attr]
    other = [other_future(case, rank, each) for rank, each in enumerate(observation.shards)]

    def leaked(rank: int, name: str, x: Tensor, y: Tensor) -> Tensor:
        return (x != y) & (past[rank] if name == "lse" else past[rank][:, None, None])

    return _compare(results, observation.again(other, future=True).results, leaked, ("out", "lse", "dq"))
