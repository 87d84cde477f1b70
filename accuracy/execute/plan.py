"""Which cases can be measured here? Each case checked against what its parts, its world and the memory can do.

A combination that its parts do not support stays in the plan with the reason, and becomes a row. An axis value that no
case can use is a mistake that stops the run at once, unless an experiment says `unusable=record` and others are left.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from accuracy.config.grid import cases_of, stop_at_useless_knobs
from accuracy.config.read import Configuration
from accuracy.config.resolve import EVERYWHERE
from accuracy.core import fields, plugins, sharding
from accuracy.core.case import Case, Part
from accuracy.core.errors import ConfigError
from accuracy.kernel.base import Abilities, kernel_of
from accuracy.kernel.block.running_state import MERGE_PLACES
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.observe import shared
from accuracy.measurement.pipeline import Measured, Pipeline
from accuracy.results.table import TOO_FEW_RANKS
from accuracy.runtime import given_mask
from accuracy.runtime.sharding import sharding_of
from accuracy.variant.base import schedule_of

ADHOC = "adhoc"  # the name of a run without an experiment
LACKS = {
    "cross_lengths": "takes as many queries as keys",
    "top_left": "has no mask aligned at the top left",
    "window": "has no windows",
    "documents": "has no packed documents",
    "softcap": "has no capped scores",
    "sinks": "has no attention sinks",
    "attn_mask": "takes no attn_mask, which a function with attn_mask, attn_bias, bias or mask gets on one rank",
    "head_dim_v": "takes values as wide as keys",
}
"""What a schedule that does not state one of a problem's features is said to lack."""


@dataclass(frozen=True)
class Planned:
    """A case, why it cannot be measured (None: it can), and how much device memory it needs at most."""

    case: Case
    unsupported: str | None
    bytes: int = 0


def measured(pipeline: Pipeline, each: Planned) -> Measured:
    """Return the rows of a planned case: its numbers, or why there are none."""
    return pipeline.unsupported(each.case, each.unsupported) if each.unsupported else pipeline.measure(each.case)


def ranks_here(configuration: Configuration) -> int:
    """Return how many processes a world on this machine can have: many a GPU, unless each is to have its own; on a CPU
    more than its processors, but no more than it can start and keep in memory."""
    if configuration.device == "cuda":
        return torch.cuda.device_count() * (1 if configuration.share_gpu is False else RANKS_A_GPU)
    return max(64, 16 * (os.cpu_count() or 1))


RANKS_A_GPU = 64


def plan(
    configuration: Configuration, free_bytes: int | None, ranks: int | None = None, with_own_gpu: int | None = None
) -> list[Planned]:
    """Return every case of the grid once; cases that share inputs and reference are neighbours. ranks: how many a
    world of processes can have; None: as many as are asked for. with_own_gpu: how many of them at most have a GPU
    each; None: as many as there are here. Raises ConfigError."""
    if with_own_gpu is None and configuration.device == "cuda":
        with_own_gpu = torch.cuda.device_count()
    planned: dict[str, Planned] = {}
    asked: dict[Case, Planned] = {}  # what the parts can do is asked once for all seeds
    for grid in (configuration, *configuration.also):
        stop_at_useless_knobs(grid)
        for drawn in cases_of(grid):
            drawn = replace(drawn, sums=grid.sums_of(drawn.world_size, with_own_gpu or math.inf))
            one = drawn if hasattr(plugins.load(drawn.inputs.source), "unsupported") else replace(drawn, seed=0)
            if one not in asked:
                asked[one] = _planned(one, free_bytes, ranks)
            each = replace(asked[one], case=replace(asked[one].case, seed=drawn.seed))
            planned.setdefault(each.case.id, each)
        if grid is configuration and configuration.given_keys == EVERYWHERE:
            reasons = [each.unsupported for each in planned.values()]
            if all(reasons):  # what further grids show is no answer for somebody whose own settings fit no case
                raise ConfigError(str(reasons[0]))
    seen: dict[object, int] = {}  # several grids may have cases that share inputs and reference
    plans = sorted(planned.values(), key=lambda each: seen.setdefault(shared(each.case), len(seen)))
    _stop_at_useless_values(configuration, plans)
    return plans


def _planned(drawn: Case, free_bytes: int | None, ranks: int | None) -> Planned:
    """Return the case with kernels for `auto`, its own and that of the path that it is compared with."""
    case = resolve_kernel(drawn) if drawn.kernel.name == "auto" else drawn
    if case.against is not None and case.against.kernel.name == "auto":
        case = replace(case, against=replace(case.against, kernel=resolve_kernel(case.other).kernel))
    if reason := next(filter(None, _reasons(case, ranks)), None):
        return Planned(case, reason)
    needed = bytes_needed(case)
    reason = _too_large(case, needed, free_bytes)
    if case.against is not None and not reason:
        if case.against.world == "processes" and case.against.world_size > 1:
            reason = f"{case.against.text}: a function of several ranks goes into path_a, the other path into path_b"
        reason = reason or next(filter(None, _reasons(case.other, None)), None)
        reason = reason or _too_large(case.other, bytes_needed(case.other), free_bytes)
        reason = reason and f"path_b: {reason}"
    return Planned(case, reason, needed)


@cache
def _abilities(kernel: Part, device: str) -> Abilities:
    return kernel_of(kernel).abilities(device)


def resolve_kernel(case: Case) -> Case:
    """Return the case with the first kernel that can serve it; the first of all where none can. For a user's function,
    none that sums gradients in 16 bits where there is a choice."""
    first, *_ = sources = case.kernel.source.split(",")
    kernels: Iterator[Part] = map(plugins.default_part, sources)  # only those that are asked are loaded
    if case.variant.forward.name == "callable":
        kernels = iter(sorted(kernels, key=lambda kernel: _abilities(kernel, case.device).short_sums))
    able = (each for each in (replace(case, kernel=kernel) for kernel in kernels) if kernel_unsupported(each) is None)
    return next(able, None) or replace(case, kernel=plugins.default_part(first))


def _reasons(case: Case, ranks: int | None) -> Iterator[str | None]:
    """Yield why the case cannot be measured; each part is asked only where none before it has a reason."""
    schedules = [schedule_of(part) for part in (case.variant.forward, case.variant.backward)]
    problem = case.problem.padded(case.variant.sharding, case.world_size)
    if (
        problem.documents
        and not case.problem.documents
        and any("documents" not in each.knows(case) for each in schedules)
    ):
        yield (
            f"variant {case.variant.name} has no packed documents, which keep padding apart under a full mask: drop"
            " problem.padding=end or use problem.mask=causal"
        )
    for feature, setting in case.problem.features.items():
        if any(feature not in schedule.knows(case) for schedule in schedules):
            lack = f"variant {case.variant.name} {LACKS[feature]}"
            yield f"{lack}: drop {setting} or use variant=single_device world_size=1"
    yield given_mask.unsupported(case.problem)
    of_bias = given_mask.of_gradient(case.problem) and all(schedule.own_sinks for schedule in schedules)
    if of_bias and "dbias" not in _abilities(case.kernel, case.device).features:
        yield f"kernel {case.kernel.name} has no gradient of a bias: use kernel=eager, or give attn_mask.detach()"
    inputs = plugins.load(case.inputs.source)
    if hasattr(inputs, "unsupported"):  # inputs that are read, not drawn, may not have what a case asks for
        yield inputs.unsupported(case, plugins.build_options(inputs, case.inputs.options))
    yield sharding.unsupported(sharding_of(case), problem.seqlen, case.world_size)
    yield from (schedule.unsupported(case) for schedule in schedules)
    policies = case.forward_precision, case.backward_precision
    if any(policy.low_wires and not each.low_wires for policy, each in zip(policies, schedules, strict=True)):
        yield f"variant {case.variant.name} has no wires of 8 bits: use 16 bits or more, or variant=ring or zigzag"
    yield kernel_unsupported(case)
    if case.world == "processes" and ranks is not None and case.world_size > ranks:
        yield (
            f"{TOO_FEW_RANKS}{ranks} ranks here (one a launched process; else {RANKS_A_GPU} a GPU, or one with"
            " share_gpu=false; on a CPU 64, or 16 a processor),"
            f" not {case.world_size}; lower world_size or use world=simulated"
        )


def _too_large(case: Case, needed: int, free_bytes: int | None) -> str | None:
    if free_bytes is None or needed <= free_bytes:
        return None
    gib = f"needs about {needed / 2**30:.1f} GiB of {case.device} memory, {free_bytes / 2**30:.1f} GiB are free"
    return f"{gib}; lower problem.seqlen, problem.heads or problem.batch"


def kernel_unsupported(case: Case) -> str | None:
    """Return why the kernel cannot serve the case, or None."""
    partials = {
        case.forward_precision.dtype("partial", case.dtype),
        case.backward_precision.dtype("gradient_partial", case.dtype),
    }
    abilities = _abilities(case.kernel, case.device)
    problem = case.problem
    if reason := abilities.unsupported(case.kernel.name, case.dtype, problem.head_dim, partials, problem.features):
        return reason
    schedule = schedule_of(case.variant.forward)
    # a kernel that carries the state of a schedule that merges rounds nothing in between: no such knob works
    for place in MERGE_PLACES if abilities.carries and "merge" in schedule.forward_places else ():
        if getattr(case.forward_precision, place) != getattr(schedule.precision, place):
            return (
                f"kernel {case.kernel.name} carries the running state through its calls, unrounded: precision.{place}"
                " changes nothing; drop it or use another kernel"
            )
    return None


def _stop_at_useless_values(configuration: Configuration, plans: list[Planned]) -> None:
    if plans[0].unsupported is not None and all(each.unsupported == plans[0].unsupported for each in plans):
        raise ConfigError(plans[0].unsupported)
    recorded = configuration.unusable == "record" and any(each.unsupported is None for each in plans)
    given = configuration.given if configuration.given_keys == EVERYWHERE else ()
    unusable = [each for each in plans if each.unsupported is not None]
    axes = [each for each in fields.AXES if unusable and (not recorded or each.word in given)]
    if configuration.name == ADHOC and "world_size" not in configuration.given:  # nobody asked for the default's ranks
        axes = [each for each in axes if each.role != fields.WORLD_SIZE]
    for axis in axes:
        usable = {axis.value_of(each.case) for each in plans if each.unsupported is None}
        for each in unusable:
            if axis.value_of(each.case) not in usable:
                several = len({axis.value_of(each.case) for each in plans}) > 1
                value = f"{axis.text(each.case)}: " if several else ""
                raise ConfigError(f"{value}{each.unsupported}")
