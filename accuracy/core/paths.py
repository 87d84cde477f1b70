"""Where the configuration tree and the experiments lie: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def _beside_or_inside(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


CONFIGS = _beside_or_inside("configs")
EXPERIMENTS = _beside_or_inside("experiments")
