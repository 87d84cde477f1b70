"""Which code does a configuration choose, and what does that code say of its knobs?

Nodes of variants, kernels and inputs become parts found on disk (`variants`, `parts`), one for every combination of the
knobs that were given; nothing is loaded. `complete_variant` and `complete_part` then load the code, perhaps a user's:
given knobs are checked and typed, the others get their defaults. That is after all plain checks, as most need torch.

`observers` names the questions asked of every case beside its errors, `observers=[repeats,explain]`, each with options
of its own, `observers.repeats.poison=true`. Older keys say the same of the observers that come with the package:
`reruns.poison=true`, `conditions=true`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from accuracy.config.checks import Axis, check, combinations, mapping, unknown_key, values_of
from accuracy.core import plugins
from accuracy.core.case import Part, Scalar, Variant
from accuracy.core.dtype import FromZero
from accuracy.core.errors import ConfigError, one_line, unknown
from accuracy.core.paths import CONFIGS, PACKAGE
from accuracy.core.sharding import SHARDINGS, UNEVEN, kind_of

CODE = ("forward", "backward", "sharding")
# what the file of a part must have
CONTENTS = {"variant": "SCHEDULE", "kernel": "KERNEL", "inputs": "draw", "observers": "answer"}
MODELS = {
    "variant": "accuracy/variant/base.py", "kernel": "accuracy/kernel/base.py",
    "inputs": "accuracy/inputs/distributions.py", "observers": "accuracy/measurement/observe.py",
}  # fmt: skip
LENGTHS = "lengths as 40+20+36"


@dataclass(frozen=True)
class Auto:
    """kernel.auto: the first candidate that can serve a case does."""

    candidates: Axis[str]


def variants(nodes: Any, folders: Sequence[Path]) -> Iterator[Variant]:
    """The chosen variants, with every combination of their knobs. Raises ConfigError."""
    known = {path.stem for place in (CONFIGS, *folders) for path in (place / "variant").glob("*.yaml")}
    for name, node in mapping("variant", nodes).items():
        if is_shorthand(node):
            if name in known:
                mapping(f"variant.{name}", node)
            continue
        missing = set(CODE) - set(node if isinstance(node, Mapping) else ())
        if missing:
            raise ConfigError(f"variant.{name} lacks {', '.join(sorted(missing))}; see configs/variant/ring.yaml")
        if kind_of(str(node["sharding"])) not in (*SHARDINGS, UNEVEN):
            raise unknown(f"variant.{name}.sharding", node["sharding"], (*SHARDINGS, LENGTHS))
        forward, backward = (part("variant", node[way], folders) for way in ("forward", "backward"))
        names = _function_names(node.get("fn"), set(nodes) - {name}) if name == "callable" else {}
        knobs = {key: node[key] for key in sorted(node) if key not in CODE}
        for options in combinations(f"variant.{name}", knobs):
            called = names.get(options.get("fn"), name)
            yield Variant(called, node["sharding"], forward, backward, tuple(options.items()))


def is_shorthand(node: Any) -> bool:
    """Whether it is no variant, but a knob that a variant's YAML refers to: variant.fn is variant.callable.fn."""
    return (
        node is None
        or isinstance(node, str)
        or (isinstance(node, list) and all(isinstance(each, str) for each in node))
    )


def _function_names(given: Any, taken: set[str]) -> dict[Any, str]:
    """What `package.module.function` or `FILE.py:function` is called in the table: the last of its words that no other
    of them ends with, nor a variant of the run."""
    for fn in values_of(given):
        if not isinstance(fn, str):
            raise ConfigError(
                f"variant.fn={given!r}; allowed: package.module.function, FILE.py:function, or a list of them"
            )
    words = {fn: [word for word in re.split(r"[./:]", str(fn)) if word not in ("", "py")] for fn in values_of(given)}
    for count in range(1, max(map(len, words.values())) + 1):
        names = {fn: ".".join(each[-count:]) for fn, each in words.items() if each}
        if len(set(names.values())) == len(names) and not {*taken, "single_device"} & set(names.values()):
            return names
    return {}


def parts(kind: str, nodes: Any, folders: Sequence[Path]) -> Iterator[Part]:
    """The chosen kernels, inputs or observers, with every combination of their knobs. Raises ConfigError."""
    for name, given in mapping(kind, nodes).items():
        if kind == "kernel" and name == "auto":
            candidates = check(Auto, "kernel.auto", given).candidates
            yield Part("auto", ",".join(part(kind, candidate, folders).source for candidate in candidates))
        else:
            node = dict(mapping(f"{kind}.{name}", given or {}))
            found = part(kind, node.pop("code", name), folders)
            for options in combinations(f"{kind}.{name}", dict(sorted(node.items()))):
                yield Part(name, found.source, tuple(options.items()))


def part(kind: str, name: Any, folders: Sequence[Path] = ()) -> Part:
    """A part's code: what `code` in its YAML file names, else NAME.py in the package or in a user's folder.

    A dotted name is that of its module. Raises ConfigError.
    """
    name, known = str(name), sources(kind, folders)
    if "." in name:
        return Part(name.rpartition(".")[2], name)
    if name not in known:
        raise unknown(f"code of {kind}", name, known)
    return Part(name, known[name])


def sources(kind: str, folders: Sequence[Path] = ()) -> dict[str, str]:
    """Where a kind's parts are, by name; the package's hide a user's, a first folder's a later one's.

    A part is what `code` in its YAML file names, else NAME.py. `auto` chooses among kernels and is none.
    """
    files = (path for place in reversed(folders) for path in (place / kind).glob("[a-z]*.py"))
    found = {path.stem: str(path.resolve()) for path in files}
    shipped, named = _shipped(kind)
    for codes in (shipped, *(_named_codes(place / kind) for place in reversed(folders)), named):
        found |= codes
    return found


@cache  # a process plans many grids, and these files stay as they are
def _shipped(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parts that come with the package, by name: each one's own module, and what YAML files name instead."""
    ours = (PACKAGE / kind).glob("[a-z]*.py") if kind == "variant" else (CONFIGS / kind).glob("*.yaml")
    names = (path.stem for path in ours if path.stem not in ("base", "auto"))
    return {name: f"accuracy.{kind}.{name}" for name in names}, _named_codes(CONFIGS / kind)


def _named_codes(folder: Path) -> dict[str, str]:
    """Return what `code` in a folder's YAML files names, by part."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    codes = {name: re.search(r"^code: *(\S+)", text, re.MULTILINE) for name, text in texts.items()}
    return {name: code[1] for name, code in codes.items() if code}


def complete_variant(variant: Variant) -> Variant:
    """The variant with all knobs of its schedules. Raises ConfigError."""
    modules = []
    for part in (variant.forward, variant.backward):
        modules.append(_module("variant", part.source))
        allowed = modules[-1].SCHEDULE.shardings
        if kind_of(variant.sharding) not in allowed:
            raise ConfigError(
                f"variant.{variant.name}.sharding={variant.sharding}, but schedule {part.name} is made for"
                f" {', '.join(LENGTHS if each == UNEVEN else each for each in allowed)}; use that"
            )
    return replace(variant, options=_typed(f"variant.{variant.name}", modules, variant.options))


def complete_part(kind: str, part: Part, strict: bool = True) -> Part:
    """The kernel or the inputs with all knobs. strict: none is text that stands for a number. Raises ConfigError."""
    if kind == "kernel" and part.name == "auto":
        for source in part.source.split(","):
            _module(kind, source)
        return part
    return replace(part, options=_typed(f"{kind}.{part.name}", [_module(kind, part.source)], part.options, strict))


def _module(kind: str, source: str) -> ModuleType:
    try:
        module = plugins.load(source)
    except Exception as error:
        text = one_line(error)
        raise ConfigError(f"{kind} {source} cannot be loaded ({text}); correct it, its name or PYTHONPATH") from error
    if not hasattr(module, CONTENTS[kind]):
        raise ConfigError(f"{kind} {source} lacks {CONTENTS[kind]}; see {MODELS[kind]}")
    return module


def _typed(
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
    if not isinstance(conditions := config.get("conditions", False), bool):
        raise ConfigError(f"conditions={conditions!r}; allowed: true or false")
    old = vars(check(Reruns, "reruns", config.get("reruns", {}))) | {"conditions": conditions}
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
