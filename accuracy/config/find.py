"""Which code does a configuration choose? Nodes of variants, kernels and inputs become parts found on disk.

In: the nodes by name, and the folders where users keep parts of their own. Out: variants and parts, one for every
combination of the knobs that were given. Nothing is loaded; `accuracy.config.knobs` asks the code about its knobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy.config.checks import Axis, check, combinations, mapping, values_of
from accuracy.core.case import Part, Variant
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import PACKAGE
from accuracy.core.sharding import SHARDINGS

CODE = ("forward", "backward", "sharding")


@dataclass(frozen=True)
class Auto:
    """kernel.auto: the first candidate that can serve a case does."""

    candidates: Axis[str]


@dataclass(frozen=True)
class Every:
    """kernel.every: all kernels on disk but some."""

    exclude: Any  # names, one name or none


def variants(nodes: Any, folders: Sequence[Path]) -> Iterator[Variant]:
    """The chosen variants, with every combination of their knobs. Raises ConfigError."""
    for name, node in mapping("variant", nodes).items():
        if isinstance(node, str):
            continue  # a shorthand that a variant's YAML refers to: variant.fn is variant.callable.fn
        missing = set(CODE) - set(node if isinstance(node, Mapping) else ())
        if missing:
            raise ConfigError(f"variant.{name} lacks {', '.join(sorted(missing))}; see configs/variant/ring.yaml")
        if node["sharding"] not in SHARDINGS:
            raise unknown(f"variant.{name}.sharding", node["sharding"], SHARDINGS)
        forward, backward = (part("variant", node[way], folders) for way in ("forward", "backward"))
        for options in _options(f"variant.{name}", {key: node[key] for key in node if key not in CODE}):
            yield Variant(name, node["sharding"], forward, backward, options)


def parts(kind: str, nodes: Any, folders: Sequence[Path]) -> Iterator[Part]:
    """The chosen kernels or inputs, with every combination of their knobs. Raises ConfigError."""
    for name, given in mapping(kind, nodes).items():
        if kind == "kernel" and name == "auto":
            candidates = check(Auto, "kernel.auto", given).candidates
            yield Part("auto", ",".join(part(kind, candidate, folders).source for candidate in candidates))
        elif kind == "kernel" and name == "every":
            excluded = check(Every, "kernel.every", given).exclude
            yield from _every_kernel(values_of(excluded) if excluded else (), folders)
        else:
            found = part(kind, name, folders)
            for options in _options(f"{kind}.{name}", given or {}):
                yield Part(name, found.source, options)


def _every_kernel(excluded: Sequence[str], folders: Sequence[Path]) -> list[Part]:
    names = sorted({path.stem for path in _files("kernel", folders)})
    for name in excluded:
        if name not in names:
            raise unknown("kernel.every.exclude", name, names)
    return [part("kernel", name, folders) for name in names if name not in excluded]


def part(kind: str, name: Any, folders: Sequence[Path]) -> Part:
    """A part's code: in the package, in a user's folder, or by the dotted name that was given. Raises ConfigError."""
    name = str(name)
    if "." in name:
        return Part(name.rpartition(".")[2], name)
    if (PACKAGE / kind / f"{name}.py").exists():
        return Part(name, f"accuracy.{kind}.{name}")
    for folder in folders:
        path = folder / kind / f"{name}.py"
        if path.exists():
            return Part(name, str(path.resolve()))
    raise unknown(f"code of {kind}", name, [path.stem for path in _files(kind, folders)])


def _files(kind: str, folders: Sequence[Path]) -> list[Path]:
    """The Python files of a kind's parts, the package's first."""
    found = [path for place in (PACKAGE, *folders) for path in sorted((place / kind).glob("[a-z]*.py"))]
    return [path for path in found if path.stem != "base"]


def _options(where: str, given: Any) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Every combination of the knobs that were given, sorted by name."""
    return (tuple(each.items()) for each in combinations(where, dict(sorted(mapping(where, given).items()))))
