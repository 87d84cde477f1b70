"""The composed configuration as the console command sees it: plain dicts and lists."""

from functools import cache
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf

from accuracy.core.paths import CONFIGS


@cache
def composed(*overrides: str, folders: tuple[Path, ...] = ()) -> dict[str, Any]:
    """To be read only: the same command gives the same object. folders: with parts of a user's own."""
    search = [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra.compose("config", overrides=[*search, *overrides])
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
