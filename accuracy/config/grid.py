"""From axes to cases: the product of all axes, slowest first, and the precision policies of the schedules."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from accuracy.config.read import Configuration
from accuracy.core import plugins
from accuracy.core.case import Case, Variant
from accuracy.core.errors import ConfigError
from accuracy.core.precision import Precision


def cases_of(configuration: Configuration) -> Iterator[Case]:
    """The product, slowest axis first: what is costly to prepare (inputs, reference, single device) changes least
    often."""
    for stack, problem, inputs, seed, dtype, kernel, size, variant, overrides in itertools.product(
        configuration.stacks or (None,), configuration.problems, configuration.inputs, configuration.seeds,
        configuration.dtypes, configuration.kernels, configuration.world_sizes, configuration.variants,
        configuration.precisions,
    ):  # fmt: skip
        roundings = _roundings(variant)
        forward, backward = (  # changed only where the schedule rounds: other places would split equal cases in two
            replace(published, **{place: word for place, word in overrides.items() if place in places})
            for published, places in roundings
        )
        pairs = [(published, policy) for (published, _), policy in zip(roundings, (forward, backward), strict=True)]
        changed = (
            f"{each.name}={overrides[each.name]}"
            for each in fields(Precision)
            if any(getattr(published, each.name) != getattr(policy, each.name) for published, policy in pairs)
        )
        yield Case(
            problem, inputs, seed, dtype, variant, kernel, forward, backward, ",".join(changed), configuration.world,
            size, configuration.device, configuration.reruns, configuration.conditions, stack,
        )  # fmt: skip


def stop_at_useless_knobs(configuration: Configuration) -> None:
    """Raises ConfigError for a rounding place that none of the variants has."""
    known = {place for variant in configuration.variants for _, places in _roundings(variant) for place in places}
    for place in (place for overrides in configuration.precisions for place in overrides):
        if place not in known:
            names = ", ".join(variant.name for variant in configuration.variants)
            raise ConfigError(f"precision.{place} changes nothing in {names}; drop it or choose a ring")


def _roundings(variant: Variant) -> tuple[tuple[Precision, Sequence[str]], ...]:
    """Of the forward and the backward schedule: the published policy, and the places where it rounds."""
    forward, backward = (plugins.load(part.source).SCHEDULE for part in (variant.forward, variant.backward))
    return (forward.precision, forward.forward_places), (backward.precision, backward.backward_places)
