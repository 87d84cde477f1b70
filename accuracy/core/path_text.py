"""A path in one word, `ring/partial:accumulate@8+eager`: knobs at the values of their configuration go without saying.

The same text whether it is made of a case or of a row of the table; `accuracy.config.paths` reads it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]

from accuracy.core.paths import CONFIGS

Settings = Mapping[str, Any]


def path_text(variant: str, options: Settings, places: Settings, world_size: int, kernel: str, knobs: Settings) -> str:
    """places: of the precision policy, those that are not as published. options: a function's with its sharding and
    `fn`, which is not said: `variant` names it."""
    said = _unusual("variant", "callable" if "fn" in options else variant, options)
    said.pop("fn", None)
    head = _word(variant, {**said, **places})
    return f"{head}@{world_size}+{_word(kernel, _unusual('kernel', kernel, knobs))}"


def pairs_of(text: object) -> dict[str, str]:
    """`key_chunk=64,query_chunk=128` as a table writes settings."""
    return dict(pair.split("=", 1) for pair in str(text or "").split(",") if "=" in pair)


def _word(name: str, settings: Settings) -> str:
    return "/".join([name, *(f"{key}:{value}" for key, value in settings.items())])


def _unusual(kind: str, name: str, settings: Settings) -> dict[str, Any]:
    usual = {key: str(value) for key, value in _configured(kind, name).items()}
    return {key: value for key, value in settings.items() if usual.get(key, "None") != str(value)}


@cache
def _configured(kind: str, name: str) -> dict[str, Any]:
    """What the package's configuration sets for a part; nothing for others' parts."""
    file = CONFIGS / kind / f"{name}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    return dict(content or {})
