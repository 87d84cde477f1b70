"""The configuration of a command, without the command: plain dicts and lists, the caller's own Hydra untouched."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import OmegaConf

from accuracy.core.errors import unknown
from accuracy.core.paths import CONFIGS


def compose(*overrides: str, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """The resolved configuration of `accuracy OVERRIDES`; folders: with a user's own parts. Raises Hydra's errors."""
    search = [f"hydra.searchpath=[{','.join(f'file://{folder.resolve()}' for folder in folders)}]"] if folders else []
    callers, version, job = GlobalHydra.instance(), VersionBase.instance(), JobRuntime.instance()
    before = callers.hydra, version.version_base, job.get("name")  # a process has one of each
    callers.clear()
    try:
        with hydra.initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            composed = hydra.compose("config", overrides=[*search, *overrides])
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]
    finally:
        GlobalHydra.set_instance(callers)
        callers.hydra, version.version_base = before[:2]
        job.set("name", before[2])


def nodes(group: str, names: Sequence[str]) -> dict[str, Any]:
    """The group's nodes of these names, as the command line has them. Raises ConfigError for an unknown name."""
    allowed = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    for name in names:
        if name not in allowed:
            raise unknown(group, name, allowed)
    return deepcopy(_nodes(group, tuple(names)))


@cache  # Hydra takes a quarter of a second
def _nodes(group: str, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = compose(f"{group}=[{','.join(names)}]")[group]
    return found
