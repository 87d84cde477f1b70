"""The composed configuration as the console command sees it: plain dicts and lists."""

from typing import Any

import hydra
from omegaconf import OmegaConf

from accuracy.locations import CONFIGS


def composed(*overrides: str) -> dict[str, Any]:
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra.compose("config", overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
