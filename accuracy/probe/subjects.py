"""Which kernels can be asked: those with a YAML file in configs/kernel, and those of a user's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy.config.knobs import complete_part
from accuracy.core.case import Part, Scalar
from accuracy.core.errors import unknown
from accuracy.core.paths import CONFIGS
from accuracy.kernel.base import Abilities, Kernel, KernelKnobs, kernel_of


@dataclass(frozen=True)
class Chosen:
    """A kernel on a device with its knobs set. source: a module's dotted name, or the path of a Python file."""

    name: str
    source: str
    options: tuple[tuple[str, Scalar], ...]
    device: str

    @property
    def abilities(self) -> Abilities:
        """What it states that it can do here."""
        return self._knobs.abilities(self.device)

    def build(self) -> Kernel:
        """The kernel itself."""
        return self._knobs.build(self.device)

    @property
    def _knobs(self) -> KernelKnobs:
        return kernel_of(Part(self.name, self.source, self.options))


def sources(folders: Sequence[Path] = ()) -> dict[str, str]:
    """Every kernel's source by name; `auto` and `every` choose among them and are none."""
    found = {path.stem: f"accuracy.kernel.{path.stem}" for path in sorted((CONFIGS / "kernel").glob("*.yaml"))}
    for chooser in ("auto", "every"):
        found.pop(chooser, None)
    for folder in folders:
        for path in sorted((folder / "kernel").glob("*.yaml")):
            found[path.stem] = str(path.with_suffix(".py").resolve())
    return found


def chosen(
    names: Sequence[str], options: dict[str, dict[str, str]], device: str, folders: Sequence[Path] = ()
) -> list[Chosen]:
    """The kernels called `names` (none: all). options: knobs by kernel, as written. Raises ConfigError."""
    known = sources(folders)
    for name in (*names, *options):
        if name not in known:
            raise unknown("kernel", name, known)
    parts = [Part(name, known[name], tuple(options.get(name, {}).items())) for name in names or known]
    return [Chosen(**vars(complete_part("kernel", part, strict=False)), device=device) for part in parts]
