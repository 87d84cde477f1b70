"""What does a part's code say of its knobs? Given ones are checked and typed, the others get their defaults.

Loads the code of parts, perhaps a user's: after all plain checks, as most need torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

from accuracy.config.checks import check, unknown_key
from accuracy.core import plugins
from accuracy.core.case import Part, Scalar, Variant
from accuracy.core.errors import ConfigError, one_line
from accuracy.core.sharding import UNEVEN, kind_of

CONTENTS = {"variant": "SCHEDULE", "kernel": "KERNEL", "inputs": "draw"}  # what the file of a part must have
MODELS = {
    "variant": "accuracy/variant/base.py", "kernel": "accuracy/kernel/base.py",
    "inputs": "accuracy/inputs/distributions.py",
}  # fmt: skip


def complete_variant(variant: Variant) -> Variant:
    """The variant with all knobs of its schedules. Raises ConfigError."""
    modules = []
    for part in (variant.forward, variant.backward):
        modules.append(_module("variant", part.source))
        allowed = modules[-1].SCHEDULE.shardings
        if kind_of(variant.sharding) not in allowed:
            raise ConfigError(
                f"variant.{variant.name}.sharding={variant.sharding}, but schedule {part.name} is made for"
                f" {', '.join('lengths as 40+20+36' if each == UNEVEN else each for each in allowed)}; use that"
            )
    return replace(variant, options=_options(f"variant.{variant.name}", modules, variant.options))


def complete_part(kind: str, part: Part, strict: bool = True) -> Part:
    """The kernel or the inputs with all knobs. strict: none is text that stands for a number. Raises ConfigError."""
    if kind == "kernel" and part.name == "auto":
        for source in part.source.split(","):
            _module(kind, source)
        return part
    return replace(part, options=_options(f"{kind}.{part.name}", [_module(kind, part.source)], part.options, strict))


def _module(kind: str, source: str) -> ModuleType:
    try:
        module = plugins.load(source)
    except Exception as error:
        text = one_line(error)
        raise ConfigError(f"{kind} {source} cannot be loaded ({text}); correct it, its name or PYTHONPATH") from error
    if not hasattr(module, CONTENTS[kind]):
        raise ConfigError(f"{kind} {source} lacks {CONTENTS[kind]}; see {MODELS[kind]}")
    return module


def _options(
    where: str, modules: Sequence[ModuleType], given: Iterable[tuple[str, Scalar]], strict: bool = True
) -> tuple[tuple[str, Any], ...]:
    classes: list[Any] = [cls for module in modules if (cls := plugins.options_of(module)) is not None]
    names = {cls: [field.name for field in fields(cls)] for cls in classes}
    known = list(dict.fromkeys(f"{where}.{name}" for cls in classes for name in names[cls]))
    for name, _ in given:
        if f"{where}.{name}" not in known:
            raise unknown_key(f"{where}.{name}", known)
    found: dict[str, Any] = {}
    for cls in classes:
        found |= vars(check(cls, where, {name: value for name, value in given if name in names[cls]}, strict))
    return tuple(sorted(found.items()))
