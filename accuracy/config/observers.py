"""Which questions does a configuration ask of every case beside its errors?

`observers` names them, `observers=[repeats,explain]`, each with options of its own, `observers.repeats.poison=true`.
Older keys say the same of the observers that come with the package: `reruns.poison=true`, `conditions=true`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy.config.checks import check
from accuracy.config.find import parts
from accuracy.core.case import Part
from accuracy.core.dtype import FromZero
from accuracy.core.errors import ConfigError

OLD_KEYS = ("reruns", "conditions")


@dataclass(frozen=True)
class Reruns:
    """The older keys, `reruns.repeat`: each is an option of an observer, or asks for the one of its name."""

    repeat: FromZero = 0
    poison: bool = False
    unwaited: bool = False
    future: bool = False
    trace: bool = False
    explain: bool = False
    places: bool = False
    batchmates: FromZero = 0
    order: FromZero = 0
    length: FromZero = 0
    queries: FromZero = 0
    chunk: FromZero = 0
    pages: FromZero = 0
    splits: FromZero = 0


@dataclass(frozen=True)
class Conditions:
    """The older key `conditions`."""

    conditions: bool = False


OPTIONS_OF = {
    "repeats": ("repeat", "poison", "unwaited", "future"),
    "invariance": ("batchmates", "order", "length", "queries", "chunk", "pages", "splits"),
    "trace": ("trace",),
    "explain": ("explain",),
    "places": ("places",),
    "conditions": ("conditions",),
}
"""By observer, the older keys that ask for it; the last four have no options."""


def observers(config: Mapping[str, Any], folders: Sequence[Path]) -> Iterator[Part]:
    """Yield the observers that a composed configuration asks for, each once. Raises ConfigError."""
    nodes = config.get("observers") or {}
    if isinstance(nodes, str | list):
        raise ConfigError(f"observers={nodes!r}; on the command line observers=[explain], here {{explain: {{}}}}")
    asked = {name: dict(node or {}) for name, node in nodes.items()} if isinstance(nodes, Mapping) else nodes
    given = {"conditions": config["conditions"]} if "conditions" in config else {}
    old = vars(check(Reruns, "reruns", config.get("reruns", {}))) | vars(check(Conditions, "", given))
    for name, keys in OPTIONS_OF.items():
        if any(old[key] for key in keys):
            options = {} if name in keys else {key: old[key] for key in keys}
            given_here = asked.get(name, {})
            asked[name] = {**options, **given_here, **{key: value for key, value in options.items() if value}}
    found = list(parts("observers", asked, folders))
    for part in found:
        if found.count(part) < len([each for each in found if each.name == part.name]):
            raise ConfigError(f"observers.{part.name} has a list of values; give each of its options one value")
    yield from found
