"""A case of a stack: a case of attention, and the stack that it stands in."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from accuracy.config.read import Configuration
from accuracy.config.stack import Stack, unsupported
from accuracy.core.case import Case, Part, Variant, digest
from accuracy.core.errors import ConfigError
from accuracy.execute.plan import Planned, plan
from accuracy.stack.memory import bytes_needed
from accuracy.variant import single_device
from accuracy.variant.base import schedule_of

SINGLE_DEVICE = Variant("single_device", "contiguous", *2 * (Part("single_device", single_device.__name__),))


@dataclass(frozen=True)
class StackCase:
    """case: the attention of every layer; its inputs are what the stack makes of them. unsupported: why not, or
    None."""

    case: Case
    stack: Stack
    unsupported: str | None = None

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the content."""
        return digest({"case": self.case.id, "stack": asdict(self.stack)})[:12]

    @property
    def shared(self) -> tuple[object, ...]:
        """What cases have in common that share a reference and targets."""
        case = self.case
        return self.stack, case.problem, case.seed, case.dtype, case.kernel, case.device

    @property
    def single_device(self) -> Case:
        """The case with its kernel run once on the whole sequence, as published."""
        return replace(
            self.case, variant=SINGLE_DEVICE, world_size=1, precision_text="",
            forward_precision=single_device.SCHEDULE.precision, backward_precision=single_device.SCHEDULE.precision,
        )  # fmt: skip


def plan_stacks(configuration: Configuration, free_bytes: int | None) -> list[StackCase]:
    """Every case once, those that share a reference next to each other. Raises ConfigError."""
    planned: dict[str, StackCase] = {}
    for grid in (configuration, *configuration.also):
        _check(grid)
        cases = plan(replace(grid, also=()), free_bytes)
        for stack in grid.stacks:
            for each in cases:
                found = _judged(each, stack, free_bytes)
                planned.setdefault(found.id, found)
    groups: dict[object, list[StackCase]] = {}
    for found in planned.values():
        groups.setdefault(found.shared, []).append(found)
    made = [found for group in groups.values() for found in group]
    reasons = {found.unsupported for found in made}
    if None not in reasons:
        raise ConfigError(next(iter(made)).unsupported or "")
    return made


def _judged(each: Planned, stack: Stack, free_bytes: int | None) -> StackCase:
    problem = each.case.problem
    shape = {"heads": problem.heads, "heads_kv": problem.heads_kv, "head_dim": problem.head_dim}
    reasons = (each.unsupported, *_unfit(each.case), unsupported(stack, shape), _memory(each.case, stack, free_bytes))
    return StackCase(each.case, stack, next((reason for reason in reasons if reason), None))


def _unfit(case: Case) -> Iterator[str | None]:
    for part in (case.variant.forward, case.variant.backward):
        if schedule_of(part).code(case):  # a callable or a package: one autograd function, no halves
            yield f"variant {case.variant.name} has no separate backward to put into a stack; use one with schedules"
    if case.problem.head_dim % 2:
        yield f"RoPE turns pairs: problem.head_dim={case.problem.head_dim} is odd; use an even one"


def _memory(case: Case, stack: Stack, free_bytes: int | None) -> str | None:
    needed = bytes_needed(case, stack)
    if free_bytes is None or needed <= free_bytes:
        return None
    return (
        f"needs about {needed / 2**30:.1f} GiB of {case.device} memory, {free_bytes / 2**30:.1f} GiB are free;"
        " lower stack.layers, stack.width or problem.seqlen"
    )


def _check(grid: Configuration) -> None:
    if not grid.stacks:
        raise ConfigError("stack.layers=0 in one grid of several; give every grid some layers, or none")
    if grid.world != "simulated":
        raise ConfigError(f"world={grid.world} has no stacks; use world=simulated")
    if [part.name for part in grid.inputs] != ["gaussian"]:
        raise ConfigError("inputs has no say in a stack, which makes its own from stack.weights; drop it")
    if any(problem.seqlen_q is not None for problem in grid.problems):
        raise ConfigError(
            "problem.seqlen_q has no place in a stack, where queries and keys are the same words; drop it"
        )
