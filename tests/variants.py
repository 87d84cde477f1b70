"""The variants on disk: those with schedules of their own, and those that wrap somebody else's callable."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from accuracy.locations import CONFIGS


def schedules(*folders: Path) -> list[str]:
    """Variants whose forward and backward are schedules; they run in every world."""
    return sorted(name for name, node in _nodes((CONFIGS, *folders)).items() if node["forward"] != "callable")


def packages() -> list[str]:
    """Variants that wrap a callable; they need ranks of torch.distributed."""
    return sorted(name for name, node in _nodes((CONFIGS,)).items() if node["forward"] == "callable")


def _nodes(folders: Sequence[Path]) -> dict[str, Any]:
    nodes = {}
    for folder in folders:
        for path in (folder / "variant").glob("*.yaml"):
            content = OmegaConf.load(path)
            nodes[path.stem] = content.get(path.stem, content)
    return nodes
