"""Checks of given values: each returns what it was given, typed, or says in one line what is allowed.

`where` is the knob's path as a user writes it, `problem.seqlen`. All raise ConfigError.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError, unknown

LIST_TOO = ", or a list of them"  # what an axis allows beyond one value


def product(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the axes' values, by name."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def axis(where: str, value: Any) -> tuple[Any, ...]:
    """The values of a knob: a list's, or the one that was given."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ConfigError(f"{where}=[] is empty; give one value or a list of values")
    return values


def choices(where: str, value: Any, allowed: Iterable[str]) -> tuple[str, ...]:
    """The values of an axis, each one of `allowed`."""
    allowed = tuple(allowed)
    for each in axis(where, value):
        if each not in allowed:
            raise unknown(where, each, allowed)
    return axis(where, value)


def choice(where: str, value: Any, allowed: Iterable[str]) -> str:
    """One of `allowed`, of a knob that is no axis."""
    values = choices(where, value, allowed)
    if len(values) > 1:
        raise ConfigError(f"{where}={list(values)} is no axis of the grid; give one value")
    return str(values[0])


def integers(where: str, value: Any, least: int) -> tuple[int, ...]:
    """Whole numbers of an axis, from `least` on."""
    return tuple(integer(where, each, least, LIST_TOO) for each in axis(where, value))


def integer(where: str, value: Any, least: int, list_too: str = "") -> int:
    """A whole number from `least` on. list_too: what else the message allows."""
    number: int = typed(where, value, int, list_too)
    if not least <= number < 2**63:
        raise ConfigError(f"{where}={number}; allowed: whole numbers from {least}, below 2^63")
    return number


def typed(where: str, value: Any, kind: type, list_too: str = "") -> Any:
    """A value of its type; a whole number counts as a number. list_too: what else the message allows."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise ConfigError(f"{where}={value!r}; allowed: {names[kind]}{list_too}")
    return value


def path(where: str, value: Any) -> Path | None:
    """A path, or None for null."""
    if isinstance(value, list | Mapping):
        raise ConfigError(f"{where}={value}; allowed: one path, or null")
    return None if value is None else Path(str(value)).expanduser()


def word(where: str, value: Any) -> str:
    """A name that can be part of a path."""
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{where}={value!r}; allowed: letters, digits, - and _")
    return value


def exact_keys(what: str, given: Any, expected: Sequence[str]) -> None:
    """All of the expected keys, and no other."""
    known_keys(what, given, expected)
    missing = [key for key in expected if key not in given]
    if missing:
        raise ConfigError(f"{what} {missing[0]!r} has no value; give one (accuracy --help lists every choice and key)")


def known_keys(what: str, given: Any, allowed: Iterable[str]) -> None:
    """No key but those allowed."""
    allowed = tuple(allowed)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what}s expected, not {given!r}; allowed: {', '.join(allowed)}")
    for key in given:
        if key not in allowed:
            raise unknown(what, key, allowed)
