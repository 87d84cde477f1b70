"""The variants on disk: those with schedules of their own, and those that wrap somebody else's callable."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from accuracy.core import plugins
from accuracy.core.paths import CONFIGS, PACKAGE


def schedules(*folders: Path) -> list[str]:
    """Variants whose forward and backward are schedules; they run in every world."""
    return sorted(name for name, node in _nodes((CONFIGS, *folders)).items() if node["forward"] != "callable")


def skip_if_bound_to_a_kernel(variant: str, *folders: Path) -> None:
    """A variant of one kernel cannot do what tests ask of variants on any kernel; it has tests of its own."""
    forward = _nodes((CONFIGS, *folders))[variant]["forward"]
    ours = (PACKAGE / "variant" / f"{forward}.py").exists()
    if ours and (kernel := plugins.load(f"accuracy.variant.{forward}").SCHEDULE.kernel):
        pytest.skip(f"runs on kernel {kernel} only: tests/contract/variant/test_{variant}.py")


def skip_if_not_traced(variant: str) -> None:
    """A schedule whose ring has some of the heads says so: a trace does not follow it."""
    if not plugins.load(f"accuracy.variant.{_nodes((CONFIGS,))[variant]['forward']}").SCHEDULE.traced:
        pytest.skip("states that it is not traced")


def packages() -> list[str]:
    """Variants that wrap a callable; they need ranks of torch.distributed."""
    return sorted(name for name, node in _nodes((CONFIGS,)).items() if node["forward"] == "callable")


@cache  # some 70 tests ask while they are collected
def _nodes(folders: tuple[Path, ...]) -> dict[str, Any]:
    nodes = {}
    for folder in folders:
        for path in (folder / "variant").glob("*.yaml"):
            content = OmegaConf.load(path)
            nodes[path.stem] = content.get(path.stem, content)
    return nodes
