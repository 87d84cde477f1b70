"""The ring variant with a statement that each rank runs first, as a user's part; and a first rank that dies."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = """from accuracy.variant.ring import Ring


class Planted(Ring):
    async def forward(self, rank, q, k, v):
        {statement}
        return await super().forward(rank, q, k, v)


SCHEDULE = Planted()
"""


def plant(folder: Path, name: str, statement: str) -> Path:
    """Make the variant in the folder, which is to be given as --config-dir."""
    (folder / "variant").mkdir(parents=True, exist_ok=True)
    (folder / "variant" / f"{name}.py").write_text(SOURCE.format(statement=statement))
    (folder / "variant" / f"{name}.yaml").write_text(
        f"# @package variant.{name}\n# A planted statement\nforward: {name}\nbackward: {name}\nsharding: contiguous\n"
    )
    return folder


def dies_once(marker: Path) -> str:
    """A statement that kills rank 1 as long as the marker exists, which it removes before."""
    marker.touch()
    return (
        f"(rank.world.rank == 1 and __import__('os').path.exists('{marker}')"
        f" and (__import__('os').remove('{marker}'), __import__('os').kill(__import__('os').getpid(), 9)))"
    )


def ends_at_once(*given: Any) -> Iterator[None]:
    """What a first rank does that never comes to a case."""
    os._exit(5)
