"""What of the suite runs when: all of it under `--stress`, else a seeded sample of each test that is marked `stress`.

`@pytest.mark.stress` leaves a test to `make stress`. `@pytest.mark.stress(12, "variant", "dtype")` leaves all to it but
12 of the test's parameter sets, or as many as hold each variant and each dtype at least once: the same ones everywhere.
"""

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence

import pytest

whole = False
"""Whether `--stress` asks for everything."""


def seeds(number: int) -> range:
    """Of a test with so many seeds; a few, of which the sample is then drawn, where not everything is asked for."""
    return range(number if whole else min(number, 4))


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """What no sample holds. What needs a GPU is sampled apart from what does not."""
    tests: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("stress"):
            tests[item.location[0], item.originalname, item.get_closest_marker("gpu") is not None].append(item)  # type: ignore[attr-defined]
    return {item for members in tests.values() for item in set(members) - set(_sample(members))}


def _sample(members: list[pytest.Item]) -> list[pytest.Item]:
    size, *covered = members[0].get_closest_marker("stress").args or (0,)  # type: ignore[union-attr]
    shuffled = random.Random(members[0].originalname).sample(members, len(members))  # type: ignore[attr-defined]
    seen: set[tuple[str, str]] = set()
    needed, others = [], []
    for item in shuffled:
        values = {(name, repr(item.callspec.params[name])) for name in covered}  # type: ignore[attr-defined]
        (others if values <= seen else needed).append(item)
        seen |= values
    return needed + others[: max(0, size - len(needed))]
