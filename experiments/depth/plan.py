"""From words of the command line to stacks: each a case of attention, what that is part of, and why it cannot be
measured, where it cannot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from accuracy.config.checks import check, combinations
from accuracy.config.read import Configuration
from accuracy.config.resolve import compose, keys_of, resolved
from accuracy.core import fields
from accuracy.core.case import Case, digest
from accuracy.core.dtype import FORMATS, FromZero, OneOf, Positive, Whole
from accuracy.core.errors import ConfigError, one_line
from accuracy.core.sharding import lengths_of
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.memory import bytes_needed
from accuracy.runtime import device
from accuracy.variant.base import schedule_of

CONFIG = Path(__file__).with_name("config")
TRAINED = {"width": 64, "feed_forward": 192, "vocabulary": 256, "heads": 4, "heads_kv": 2, "head_dim": 32}
"""The shape of the trained model."""


@dataclass(frozen=True)
class Stack:
    """L blocks as Llama has them: RMSNorm, projections, RoPE, attention, residual; with F, a gated feed-forward too.

    weights: `random`, normal with variance 1 / fan-in, or `trained`, the small model beside this file, its layers
    repeated to any depth; gain: factor of the query and the key weights, so that logits grow by its square;
    residual: dtype of the residual stream, the case's (`input`) or float32 (`accumulate`); `all`: of all but the
    attention float32; or `none`: nothing is added;
    norm: whether there is RMSNorm at all.
    """

    layers: Whole
    width: Whole
    feed_forward: FromZero = 0
    vocabulary: Whole = 256
    weights: Annotated[str, OneOf("random", "trained")] = "random"
    gain: Positive = 1.0
    residual: Annotated[str, OneOf("input", "accumulate", "all", "none")] = "input"
    norm: bool = True


@dataclass(frozen=True)
class Planned:
    """Attention as `case` has it inside a stack; unsupported: why that cannot be measured; None: it can."""

    case: Case
    stack: Stack
    unsupported: str | None = None

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the content."""
        return digest(fields.without_defaults(fields.values(self.case)) | vars(self.stack))[:12]

    @property
    def shared(self) -> object:
        """What stacks that share a reference and a single device have in common."""
        case = self.case
        return self.stack, case.problem, case.seed, case.dtype, case.device, case.kernel


def composed(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of `python -m experiments.depth WORDS`. Raises ConfigError."""
    chosen = [] if any(word.startswith("experiment=") for word in words) else ["experiment=depth"]
    try:
        config = compose(*chosen, *words, folders=[CONFIG])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error.__cause__ or error)) from error
    if "stack" not in config:
        raise ConfigError(f"experiment={config['name']} has no stack; run it by accuracy experiment={config['name']}")
    return resolved(config, keys_of(words))


def planned(config: Mapping[str, Any]) -> tuple[Configuration, list[Planned]]:
    """The main grid's configuration, and every stack of all grids once, those that share a reference side by side.
    Raises ConfigError for values that no stack of the main grid can have."""
    (main, _), *_ = every = list(_grids(config))
    free = device.free_bytes(main.device)
    found: dict[str, Planned] = {}
    for grid, stacks in every:
        for each in plan(grid, free):
            for stack in stacks:
                reason = unsupported(each.case, stack) or each.unsupported or _too_large(each.case, stack, free)
                one = Planned(each.case, stack, reason)
                found.setdefault(one.id, one)
        if grid is main and main.unusable == "stop" and all(each.unsupported for each in found.values()):
            raise ConfigError(str(next(iter(found.values())).unsupported))
    order: dict[object, int] = {}
    return main, sorted(found.values(), key=lambda each: order.setdefault(each.shared, len(order)))


def _grids(config: Mapping[str, Any]) -> Iterator[tuple[Configuration, list[Stack]]]:
    """Each grid of attention, and the stacks around all of its cases. What a further grid cannot do becomes rows."""
    attention = {key: value for key, value in config.items() if key != "stack"}
    yield read_settled({**attention, "also": {}}), _stacks(config["stack"])
    for name, grid in (config["also"] or {}).items():
        own = {key: value for key, value in grid.items() if key != "stack"}
        read = read_settled({**attention, "also": {name: own}})
        for each in read.also:
            yield replace(each, unusable="record"), _stacks({**config["stack"], **grid.get("stack", {})})


def _stacks(node: Mapping[str, Any]) -> list[Stack]:
    return [check(Stack, "stack", each) for each in combinations("stack", node)]


def unsupported(case: Case, stack: Stack) -> str | None:
    """Return why attention cannot be measured inside a stack, beyond what it needs alone; None: it can."""
    problem = case.problem
    if case.world != "simulated":
        return f"world={case.world} has no stacks; use world=simulated"
    if case.inputs_dtype:
        return f"dtype={case.inputs_dtype} is of attention's inputs, which a stack makes itself; use dtype={case.dtype}"
    if case.inputs.name != "gaussian":
        return "inputs has no say in a stack, which makes its own from stack.weights; drop it"
    for name, why in {
        "seqlen_q": "where queries and keys are the same words", "head_dim_v": "whose values are as wide as its keys",
        "sinks": "whose blocks are Llama's", "padding": "whose words are all measured",
    }.items():  # fmt: skip
        if getattr(problem, name) is not None:
            return f"problem.{name} has no place in a stack, {why}; drop it"
    if lengths_of(case.variant.sharding):
        return f"sharding={case.variant.sharding} has no place in a stack, whose ranks hold as many words; drop it"
    if case.against is not None:
        return f"path_b={case.against.text} has no place in a stack; drop it, or compare paths by accuracy"
    if case.observers:
        return "observers are of attention alone; drop them, or leave the stack to `accuracy`"
    if problem.head_dim % 2:
        return f"RoPE turns pairs: problem.head_dim={problem.head_dim} is odd; use an even one"
    for schedule in map(schedule_of, (case.variant.forward, case.variant.backward)):
        if schedule.code(case):  # a callable or a package: one autograd function, no halves
            return f"variant {case.variant.name} has no separate backward to put into a stack; use one with schedules"
        if not schedule.gradients:
            return f"variant {case.variant.name} gives no gradients; use one with a backward"
    given = vars(problem) | vars(stack)
    wrong = [f"{'stack' if name in vars(stack) else 'problem'}.{name}={size}"
             for name, size in TRAINED.items() if given[name] != size]  # fmt: skip
    if stack.weights == "random" or not wrong:
        return None
    return f"stack.weights=trained was trained in another shape; use {', '.join(wrong)}"


def _too_large(case: Case, stack: Stack, free: int | None) -> str | None:
    needed = bytes_needed(case) + _bytes(case, stack)
    if free is None or needed <= free:
        return None
    gib = f"needs about {needed / 2**30:.1f} GiB of {case.device} memory, {free / 2**30:.1f} GiB are free"
    return f"{gib}; lower stack.layers or stack.width"


def _bytes(case: Case, stack: Stack) -> int:
    """Weights; x, dx and the compared gradients of all layers, of the reference and of single device; one layer or the
    loss in float64."""
    problem, size = case.problem, FORMATS[case.dtype].bytes
    tokens, reference = problem.batch * problem.seqlen, 4 if size == 2 else 8
    across = (problem.heads + problem.heads_kv) * problem.head_dim
    compared, others = 2 * stack.width * across, 3 * stack.width * stack.feed_forward
    stream = tokens * stack.width
    layer = (compared + others) * size + (2 * stream + compared) * (reference + size) + stream * 8
    at_work = 3 * (compared + others) + tokens * (8 * stack.width + 8 * across + 6 * stack.feed_forward)
    ends = 2 * stack.vocabulary * stack.width * size
    return stack.layers * layer + ends + 8 * max(at_work, 3 * tokens * stack.vocabulary)
