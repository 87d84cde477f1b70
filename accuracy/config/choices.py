"""Which code a configuration chooses: from the nodes of variants, kernels and inputs to parts with checked knobs.

In: the nodes by name, and the folders where users keep parts of their own. Out: variants and parts, one for every
combination of their knobs' values.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from accuracy.config import checks
from accuracy.core import plugins
from accuracy.core.case import Part, Scalar, Variant
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import PACKAGE
from accuracy.runtime.sharding import SHARDINGS

CONTENTS = {"variant": "SCHEDULE", "kernel": "KERNEL", "inputs": "draw"}  # what the file of a part must have


def variants(nodes: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Variant]:
    """The chosen variants, with every combination of their knobs. Raises ConfigError."""
    for name, node in nodes.items():
        if isinstance(node, str):
            continue  # a shorthand that a variant's YAML refers to: variant.fn is variant.callable.fn
        missing = {"forward", "backward", "sharding"} - set(node if isinstance(node, Mapping) else ())
        if missing:
            raise ConfigError(f"variant.{name} lacks {', '.join(sorted(missing))}; see configs/variant/ring.yaml")
        schedules = {way: _part("variant", node[way], folders) for way in ("forward", "backward")}
        modules = [_module("variant", part) for part in schedules.values()]
        sharding = checks.choice(f"variant.{name}.sharding", node["sharding"], SHARDINGS)
        for part, module in zip(schedules.values(), modules, strict=True):
            if sharding not in module.SCHEDULE.shardings:
                allowed = ", ".join(module.SCHEDULE.shardings)
                raise ConfigError(
                    f"variant.{name}.sharding={sharding}, but schedule {part.name} is made for {allowed}; use that"
                )
        given = {key: value for key, value in node.items() if key not in ("forward", "backward", "sharding")}
        for options in _options(f"variant.{name}", given, modules):
            yield Variant(name, sharding, **schedules, options=options)


def parts_of(kind: str, nodes: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Part]:
    """The chosen kernels or inputs, with every combination of their knobs. Raises ConfigError."""
    for name, given in nodes.items():
        if kind == "kernel" and name == "auto":
            checks.exact_keys("knob of kernel.auto", given, ("candidates",))
            candidates = checks.axis("kernel.auto.candidates", given["candidates"])
            yield Part("auto", ",".join(_part(kind, candidate, folders).source for candidate in candidates))
            continue
        if kind == "kernel" and name == "every":
            yield from _every_kernel(given, folders)
            continue
        part = _part(kind, name, folders)
        for options in _options(f"{kind}.{name}", given or {}, [_module(kind, part)]):
            yield Part(name, part.source, options)


def _every_kernel(given: Mapping[str, Any], folders: Sequence[Path]) -> Iterable[Part]:
    """Every kernel on disk at its defaults, but those that are excluded."""
    checks.exact_keys("knob of kernel.every", given, ("exclude",))
    names = sorted({path.stem for path in _files("kernel", folders)})
    excluded = given["exclude"] and checks.choices("kernel.every.exclude", given["exclude"], names)
    for name in names:
        if name not in (excluded or ()):
            part = _part("kernel", name, folders)
            yield Part(name, part.source, plugins.default_options(_module("kernel", part)))


def _part(kind: str, name: Any, folders: Sequence[Path]) -> Part:
    """Find a part's code: in the package, in a user's folder, or by the dotted name that was given."""
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


def _module(kind: str, part: Part) -> ModuleType:
    """A part's code, which someone else may have written: it loads, and has what its kind must have."""
    try:
        module = plugins.load(part.source)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{kind} {part.source} cannot be loaded ({text}); correct it, its name or PYTHONPATH"
        ) from error
    if not hasattr(module, CONTENTS[kind]):
        raise ConfigError(f"{kind} {part.source} lacks {CONTENTS[kind]}; see accuracy/{kind}/base.py")
    return module


def _options(where: str, given: Mapping[str, Any], modules: Sequence[ModuleType]) -> Iterable[tuple[Any, ...]]:
    """Every combination of a part's knobs, defaults filled in, sorted by name."""
    options = [cls for module in modules if (cls := plugins.options_of(module)) is not None]
    declared = {field.name: field for cls in options for field in fields(cls)}  # type: ignore[arg-type]
    checks.known_keys(f"knob of {where}", given, declared)
    axes: dict[str, tuple[Scalar, ...]] = {}
    for name, field in sorted(declared.items()):
        values = checks.axis(f"{where}.{name}", given[name]) if name in given else (field.default,)
        axes[name] = tuple(
            checks.typed(f"{where}.{name}", each, _type_of(field.type), checks.LIST_TOO) for each in values
        )
    combinations = [tuple(choice.items()) for choice in checks.product(axes)]
    for module, options in itertools.product(modules, combinations):
        try:
            plugins.build_options(module, options)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
    return combinations


def _type_of(annotation: Any) -> type:
    return {"int": int, "float": float, "bool": bool, "str": str}.get(str(annotation), annotation)
