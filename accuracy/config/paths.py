"""What does a path's text name? `NAME[/KEY:VALUE...][@WORLD_SIZE][+KERNEL[/KEY:VALUE...]]` as code, knobs and sizes.

NAME: a variant, a kernel (which is then run once, on one device), or a function, `package.module.function` or
`FILE.py:function`. KEY: a knob of the variant or a rounding place of the precision policy; of a function sharding and
layout. What a text leaves out is that of the run: its kernels and its world sizes, of a kernel or of a variant of one
device 1.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from accuracy.config.checks import check, values_of
from accuracy.config.find import parts, variants
from accuracy.core import plugins
from accuracy.core.case import Part, Variant
from accuracy.core.dtype import Precision
from accuracy.core.errors import ConfigError, unknown
from accuracy.core.paths import CONFIGS

PLACES = tuple(field.name for field in fields(Precision))
FORM = "give NAME, as in ring@8, split_kv/splits:4@1+eager, ring/partial:accumulate@8 or FILE.py:function@2"


@dataclass(frozen=True)
class NamedPath:
    """A path before its code is asked: kernel, world_size None: those of the run. precision: places and words."""

    variant: Variant
    kernel: Part | None
    precision: tuple[tuple[str, str], ...]
    world_size: int | None

    @property
    def is_function(self) -> bool:
        """Whether it is somebody's function, which talks over torch.distributed."""
        return self.variant.forward.name == "callable"


def named_paths(key: str, texts: Any, folders: Sequence[Path]) -> Iterator[NamedPath]:
    """The paths of a key; none where it is null. Raises ConfigError."""
    if texts == []:
        raise ConfigError(f"{key}=[] has no path; {FORM}")
    for text in () if texts is None else values_of(texts):
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{key}={text!r} is no path; {FORM}")
        try:
            yield _path(text.strip(), folders)
        except ConfigError as error:
            raise ConfigError(f"{key}={text}: {error}") from error


def needs_processes(texts: Any) -> bool:
    """Whether one of the paths is a function's, a user's or a package's."""
    names = [text for text in ([] if texts is None else values_of(texts)) if isinstance(text, str)]
    nodes = _variant_nodes(()) if names else {}
    return any(
        is_function(text) or nodes.get(re.split("[/@+]", text)[0], {}).get("forward") == "callable" for text in names
    )


def is_function(text: object) -> bool:
    """Whether a path's text names a function."""
    if not isinstance(text, str):
        return False
    return "." in re.split(r"[/@+]", text)[0] or ".py:" in text or plugins.is_handed_over(text)


def _path(text: str, folders: Sequence[Path]) -> NamedPath:
    before, plus, kernel_text = text.partition("+")
    before, at, size = before.partition("@")
    if (plus and not kernel_text) or (at and not (size.isdecimal() and 1 <= int(size[:20]) < 2**31)):
        raise ConfigError(f"@ is followed by a number of ranks, + by a kernel; {FORM}")
    name, settings = _function_words(before) if is_function(text) else _words(before)
    kernel = _kernel(kernel_text, folders) if plus else None
    nodes = _variant_nodes(folders)
    if not is_function(text) and name not in nodes:
        if plus or name not in _kernel_names(folders):
            raise unknown("variant, kernel or function", name, [*nodes, *_kernel_names(folders)])
        kernel, name, settings = _kernel(before, folders), "single_device", {}
        size = size or "1"
    precision = {key: settings.pop(key) for key in PLACES if key in settings}
    check(Precision, "precision", precision)
    node = _function_node(name) if is_function(text) else nodes[name]
    called = "callable" if is_function(text) and not plugins.is_handed_over(name) else name.removeprefix(plugins.PREFIX)
    (variant,) = variants({called: {**node, **settings}}, folders)
    return NamedPath(variant, kernel, tuple(precision.items()), int(size) if size else None)


def _words(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its settings, `ring/partial:accumulate`."""
    name, *settings = text.split("/")
    pairs = [re.split("[:=]", setting, maxsplit=1) for setting in settings]
    if wrong := next((setting for setting, pair in zip(settings, pairs, strict=True) if len(pair) < 2), None):
        raise ConfigError(f"{wrong!r} is no KEY:VALUE; {FORM}")
    return name, {key: yaml.safe_load(value) for key, value in pairs}


def _function_words(text: str) -> tuple[str, dict[str, Any]]:
    """As `_words`; a function's name may hold the folders of its file."""
    file, mark, rest = text.rpartition(".py:")
    name, settings = _words(rest)
    return file + mark + name, settings


def _function_node(name: str) -> dict[str, Any]:
    return {"forward": "callable", "backward": "callable", "sharding": "contiguous", "layout": "bshd", "fn": name}


def _kernel(text: str, folders: Sequence[Path]) -> Part:
    name, settings = _words(text)
    if name not in _kernel_names(folders):
        raise unknown("kernel", name, _kernel_names(folders))
    (kernel,) = parts("kernel", {name: settings}, folders)
    return kernel


def _kernel_names(folders: Sequence[Path]) -> list[str]:
    places = (path.stem for place in (CONFIGS, *folders) for path in (place / "kernel").glob("*.yaml"))
    return sorted({*places} - {"auto"})


def _variant_nodes(folders: Sequence[Path]) -> dict[str, Any]:
    """What the variants' files say, by name; a package's variant is below its own name there."""
    found = {}
    for path in (path for place in (CONFIGS, *folders) for path in sorted((place / "variant").glob("*.yaml"))):
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        found[path.stem] = content.get(path.stem, content)
    found.pop("callable", None)
    return found
