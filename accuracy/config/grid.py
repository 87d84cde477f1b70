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
        forward, backward = (plugins.load(part.source).SCHEDULE for part in (variant.forward, variant.backward))
        forward_policy = _override(forward.precision, forward.forward_places, overrides)
        backward_policy = _override(backward.precision, backward.backward_places, overrides)
        pairs = (forward.precision, forward_policy), (backward.precision, backward_policy)
        changed = (
            f"{place}={overrides[place]}"
            for place in _places(variant)
            if any(getattr(published, place) != getattr(policy, place) for published, policy in pairs)
        )
        yield Case(
            problem, inputs, seed, dtype, variant, kernel, forward_policy, backward_policy, ",".join(changed),
            configuration.world, size, configuration.device, configuration.reruns, configuration.conditions,
            stack,
        )  # fmt: skip


def _override(published: Precision, places: Sequence[str], overrides: dict[str, str]) -> Precision:
    """A schedule's policy, changed only where that schedule rounds: other places would split equal cases in two."""
    return replace(published, **{place: word for place, word in overrides.items() if place in places})


def stop_at_useless_knobs(configuration: Configuration) -> None:
    """Raises ConfigError for a rounding place that none of the variants has."""
    places = {place for variant in configuration.variants for place in _places(variant)}
    for overrides in configuration.precisions:
        for place in overrides:
            if place not in places:
                names = ", ".join(variant.name for variant in configuration.variants)
                raise ConfigError(f"precision.{place} changes nothing in {names}; drop it or choose a ring")


def _places(variant: Variant) -> list[str]:
    """The rounding places that a variant's schedules have, in the policy's order."""
    forward, backward = (plugins.load(part.source).SCHEDULE for part in (variant.forward, variant.backward))
    return [
        each.name for each in fields(Precision) if each.name in (*forward.forward_places, *backward.backward_places)
    ]
