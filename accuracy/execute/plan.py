"""Which cases can be measured here? Each case checked against what its parts, its world and the memory can do.

A combination that its parts do not support stays in the plan with the reason, and becomes a row. An axis value that no
case can use, and a problem that is none, are mistakes: they stop the run at once with one line. An experiment that
lists what some machine may lack says `unusable=record`: such a value is no mistake then, unless nothing else is left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from accuracy.config.grid import cases_of, stop_at_useless_knobs
from accuracy.config.read import Configuration
from accuracy.core import fields, plugins, sharding
from accuracy.core.case import Case, Part
from accuracy.core.errors import ConfigError
from accuracy.kernel.base import Abilities, kernel_of
from accuracy.kernel.block.running_state import MERGE_PLACES
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.pipeline import Measured, Pipeline, shared
from accuracy.reference import choice
from accuracy.stack.unsupported import unsupported as stack_unsupported
from accuracy.variant.base import schedule_of

LACKS = {
    "cross_lengths": "takes as many queries as keys",
    "top_left": "has no mask aligned at the top left",
    "window": "has no windows",
    "documents": "has no packed documents",
    "softcap": "has no capped scores",
}
"""What a schedule that does not state one of a problem's features is said to lack."""


@dataclass(frozen=True)
class Planned:
    """A case, and why it cannot be measured (None: it can)."""

    case: Case
    unsupported: str | None


def measured(pipeline: Pipeline, each: Planned) -> Measured:
    """The rows of a planned case: its numbers, or why there are none."""
    return pipeline.unsupported(each.case, each.unsupported) if each.unsupported else pipeline.measure(each.case)


def plan(configuration: Configuration, free_bytes: int | None, ranks: int | None = None) -> list[Planned]:
    """Every case of the grid once, cases that share inputs and reference next to each other.

    ranks: how many a world of processes can have; None: as many as are asked for. Raises ConfigError.
    """
    planned: dict[str, Planned] = {}
    for grid in (configuration, *configuration.also):
        stop_at_useless_knobs(grid)
        for drawn in cases_of(grid):
            case = resolve_kernel(drawn) if drawn.kernel.name == "auto" else drawn
            planned.setdefault(case.id, _judge(case, free_bytes, ranks))
    plans = _neighbours(planned.values())
    for problem in {each.case.problem for each in plans}:
        choice.choose(problem, configuration.device, configuration.reference_method)
    _stop_at_useless_values(configuration, plans)
    return plans


def _neighbours(plans: Iterable[Planned]) -> list[Planned]:
    """Several grids may have cases that share inputs and reference."""
    groups: dict[object, list[Planned]] = {}
    for each in plans:
        groups.setdefault(shared(each.case), []).append(each)
    return [each for group in groups.values() for each in group]


def resolve_kernel(case: Case) -> Case:
    """The first candidate that can serve the case; the first of all where none can."""
    candidates = []
    for source in case.kernel.source.split(","):
        defaults = plugins.default_options(plugins.load(source))
        candidates.append(replace(case, kernel=Part(source.rpartition(".")[2], source, defaults)))
    return next((each for each in candidates if kernel_unsupported(each) is None), candidates[0])


def _judge(case: Case, free_bytes: int | None, ranks: int | None) -> Planned:
    forward, backward = (schedule_of(part) for part in (case.variant.forward, case.variant.backward))
    reasons: Iterable[Callable[[], str | None]] = (
        lambda: None if case.stack is None else stack_unsupported(case),
        lambda: _feature_unsupported(case),
        lambda: _inputs_unsupported(case),
        lambda: sharding.unsupported(case.variant.sharding, case.problem.seqlen, case.world_size),
        lambda: forward.unsupported(case),
        lambda: backward.unsupported(case),
        lambda: kernel_unsupported(case),
        lambda: _world_unsupported(case, ranks),
        lambda: _memory_unsupported(case, free_bytes),
    )
    return Planned(case, next((reason for check in reasons if (reason := check())), None))


def _feature_unsupported(case: Case) -> str | None:
    """Schedules know causal and full masks of as many queries as keys, and beyond that what their features state."""
    schedules = [schedule_of(part) for part in (case.variant.forward, case.variant.backward)]
    for feature, setting in case.problem.features.items():
        if any(feature not in schedule.features for schedule in schedules):
            return (
                f"variant {case.variant.name} {LACKS[feature]}: drop {setting} or use variant=single_device"
                " world_size=1"
            )
    return None


def _inputs_unsupported(case: Case) -> str | None:
    """Inputs that are read, not drawn, may not have what a case asks for."""
    module = plugins.load(case.inputs.source)
    unsupported: Callable[[Case, Any], str | None] = getattr(module, "unsupported", lambda case, options: None)
    return unsupported(case, plugins.build_options(module, case.inputs.options))


def kernel_unsupported(case: Case) -> str | None:
    """Why the kernel cannot serve the case, or None."""
    partials = {
        case.forward_precision.dtype("partial", case.dtype),
        case.backward_precision.dtype("gradient_partial", case.dtype),
    }
    abilities = _abilities(case.kernel, case.device)
    problem = case.problem
    unsupported = abilities.unsupported(case.kernel.name, case.dtype, problem.head_dim, partials, problem.features)
    return unsupported or (_carried_unsupported(case) if abilities.carries else None)


def _carried_unsupported(case: Case) -> str | None:
    """Where a kernel carries the state of a schedule that merges, nothing is rounded in between: no such knob works."""
    schedule = schedule_of(case.variant.forward)
    if "merge" not in schedule.forward_places:
        return None
    for place in MERGE_PLACES:
        if getattr(case.forward_precision, place) != getattr(schedule.precision, place):
            return (
                f"kernel {case.kernel.name} carries the running state through its calls, unrounded: precision.{place}"
                " changes nothing; drop it or use another kernel"
            )
    return None


def _world_unsupported(case: Case, ranks: int | None) -> str | None:
    """Real ranks have a GPU each, and under a launcher a process each."""
    if case.world != "processes" or ranks is None or case.world_size <= ranks:
        return None
    return (
        f"world=processes has {ranks} ranks here (one a GPU, or one a launched process), not {case.world_size};"
        " lower world_size or use world=simulated"
    )


@cache
def _abilities(kernel: Part, device: str) -> Abilities:
    return kernel_of(kernel).abilities(device)


def _memory_unsupported(case: Case, free_bytes: int | None) -> str | None:
    needed = bytes_needed(case)
    if free_bytes is None or needed <= free_bytes:
        return None
    lower = "problem.seqlen, problem.heads or problem.batch" if case.stack is None else "stack.layers or stack.width"
    free = f"{free_bytes / 2**30:.1f} GiB are free"
    return f"needs about {needed / 2**30:.1f} GiB of {case.device} memory, {free}; lower {lower}"


def _stop_at_useless_values(configuration: Configuration, plans: list[Planned]) -> None:
    if plans[0].unsupported is not None and all(each.unsupported == plans[0].unsupported for each in plans):
        raise ConfigError(plans[0].unsupported)
    if configuration.unusable == "record" and any(each.unsupported is None for each in plans):
        return
    for axis in fields.AXES:
        usable = {axis.value_of(each.case) for each in plans if each.unsupported is None}
        several = len({axis.value_of(each.case) for each in plans}) > 1
        for each in plans:
            if each.unsupported is not None and axis.value_of(each.case) not in usable:
                given = f"{axis.said(each.case)}: " if several else ""
                raise ConfigError(f"{given}{each.unsupported}")
