"""From axes to cases: the product of all axes, slowest first, and the precision policies of the schedules."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from accuracy.config.paths import NamedPath
from accuracy.config.read import Configuration
from accuracy.core import plugins
from accuracy.core.case import Case, Other, Part, Variant
from accuracy.core.dtype import INPUT_FORMATS, Precision, held
from accuracy.core.errors import ConfigError

ONE_HOT, OTHER_PATH = Part("one_hot", "accuracy.explain.one_hot"), Part("other_path", "accuracy.paths.other_path")
"""Observers that go with a case's inputs, and with its other path."""


def cases_of(configuration: Configuration) -> Iterator[Case]:
    """The product, slowest axis first: what is costly to prepare (inputs, reference, single device) changes least
    often."""
    pairs = {kernel: list(_pairs(configuration, kernel)) for kernel in configuration.kernels}
    for problem, inputs, seed, dtype, kernel in itertools.product(
        configuration.problems, configuration.inputs, configuration.seeds,
        configuration.dtypes, configuration.kernels,
    ):  # fmt: skip
        of_inputs = (ONE_HOT,) if inputs.name == "one_hot" else ()
        for path, against in pairs[kernel]:
            yield Case(
                problem, inputs, seed, held(dtype), path.variant, path.kernel, path.forward_precision,
                path.backward_precision, path.precision_text, path.world, path.world_size, configuration.device,
                (*configuration.observers, *of_inputs, *((OTHER_PATH,) if against else ())), against,
                dtype if dtype in INPUT_FORMATS else "",
            )  # fmt: skip


def _pairs(configuration: Configuration, kernel: Part) -> Iterator[tuple[Other, Other | None]]:
    """Each path beside each of path_b; without path_b each of path_a beside those after it, unless each is varied."""
    paths = list(_paths(configuration, kernel))
    others = [other for each in configuration.paths_b for other in _others(each, kernel, configuration)]
    if others:
        yield from itertools.product(paths, others)
    elif len(configuration.paths_a) > 1 and "invariance" not in {each.name for each in configuration.observers}:
        yield from itertools.combinations(paths, 2)
    else:
        yield from ((path, None) for path in paths)


def _paths(configuration: Configuration, kernel: Part) -> Iterator[Other]:
    """What is measured on a kernel: the chosen paths, else every variant at every world size and precision."""
    for path in configuration.paths_a:
        yield from (replace(each, world=configuration.world) for each in _others(path, kernel, configuration))
    if not configuration.paths_a:
        for size, variant, overrides in itertools.product(
            configuration.world_sizes, configuration.variants, configuration.precisions
        ):
            yield _resolved(variant, kernel, overrides, configuration.world, size)


def _others(path: NamedPath, kernel: Part, configuration: Configuration) -> Iterator[Other]:
    """A path at the run's world sizes, unless it has its own or is one of one device."""
    sizes = (path.world_size,) if path.world_size else (1,) if _is_of_one_device(path) else configuration.world_sizes
    world = "processes" if path.is_function else "simulated"
    for size in sizes:
        yield _resolved(path.variant, path.kernel or kernel, dict(path.precision), world, size)


def _resolved(variant: Variant, kernel: Part, overrides: Mapping[str, str], world: str, size: int) -> Other:
    """With the policies of its schedules, changed only where each rounds: other places would split equal cases."""
    roundings = _roundings(variant)
    forward, backward = (
        replace(published, **{place: word for place, word in overrides.items() if place in places})
        for published, places in roundings
    )
    pairs = [(published, policy) for (published, _), policy in zip(roundings, (forward, backward), strict=True)]
    changed = (
        f"{each.name}={overrides[each.name]}"
        for each in fields(Precision)
        if any(getattr(published, each.name) != getattr(policy, each.name) for published, policy in pairs)
    )
    return Other(variant, kernel, forward, backward, ",".join(changed), world, size)


def stop_at_useless_knobs(configuration: Configuration) -> None:
    """Raises ConfigError for a rounding place that none of the variants has, and for numbers of ranks, or a kernel,
    that were given where each path has its own."""
    paths = (*configuration.paths_a, *configuration.paths_b)
    known = {place for variant in configuration.variants for _, places in _roundings(variant) for place in places}
    for path in paths:
        for place in dict(path.precision):
            if not any(place in places for _, places in _roundings(path.variant)):
                raise ConfigError(f"{place} changes nothing in the path {path.variant.name}; drop it or choose a ring")
    own_sizes = all(each.world_size or _is_of_one_device(each) for each in paths)
    if paths and own_sizes and "world_size" in configuration.given and configuration.world_sizes != (1,):
        raise ConfigError("world_size changes nothing: each path has its own number of ranks; write NAME@WORLD_SIZE")
    own_kernels = all(each.kernel for each in paths)
    if paths and own_kernels and "kernel" in configuration.given and configuration.kernels[0].name != "auto":
        raise ConfigError("kernel changes nothing: each path has its own; write NAME+KERNEL")
    for place in (place for overrides in configuration.precisions for place in overrides):
        if place not in known:
            names = ", ".join(variant.name for variant in configuration.variants)
            raise ConfigError(f"precision.{place} changes nothing in {names}; drop it or choose a ring")


def _is_of_one_device(path: NamedPath) -> bool:
    return bool(plugins.load(path.variant.forward.source).SCHEDULE.one_device)


def _roundings(variant: Variant) -> tuple[tuple[Precision, Sequence[str]], ...]:
    """Of the forward and the backward schedule: the published policy, and the places where it rounds."""
    forward, backward = (plugins.load(part.source).SCHEDULE for part in (variant.forward, variant.backward))
    return (forward.precision, forward.forward_places), (backward.precision, backward.backward_places)
