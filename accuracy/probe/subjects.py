"""Which kernels can be asked: those with a YAML file in configs/kernel, and those of a user's folder."""

from collections.abc import Sequence
from pathlib import Path

from accuracy.config.knobs import complete_part
from accuracy.core.case import Part
from accuracy.core.errors import unknown
from accuracy.core.paths import CONFIGS


def sources(folders: Sequence[Path] = ()) -> dict[str, str]:
    """Every kernel's source by name; `auto` and `every` choose among them and are none."""
    found = {path.stem: f"accuracy.kernel.{path.stem}" for path in sorted((CONFIGS / "kernel").glob("*.yaml"))}
    for chooser in ("auto", "every"):
        found.pop(chooser, None)
    for folder in folders:
        for path in sorted((folder / "kernel").glob("*.yaml")):
            found[path.stem] = str(path.with_suffix(".py").resolve())
    return found


def chosen(names: Sequence[str], options: dict[str, dict[str, str]], folders: Sequence[Path] = ()) -> list[Part]:
    """The kernels called `names` (none: all). options: knobs by kernel, as written. Raises ConfigError."""
    known = sources(folders)
    for name in (*names, *options):
        if name not in known:
            raise unknown("kernel", name, known)
    parts = (Part(name, known[name], tuple(options.get(name, {}).items())) for name in names or known)
    return [complete_part("kernel", part, strict=False) for part in parts]
