"""Is what was given of the right kind? A mapping as a checked dataclass, or one line that says what is allowed.

The dataclass is pydantic's schema. where: the path of a mapping as a user writes it, `problem` for `problem.seqlen`.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict

from accuracy.core.errors import ConfigError, unknown

T = TypeVar("T")
ONE_OR_MORE = "give one value or a list of values"


def values_of(value: Any) -> tuple[Any, ...]:
    """The values of an axis: a list's, or the one that was given. Raises ConfigError."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ConfigError(f"{value!r} holds none; {ONE_OR_MORE}")
    return values


Axis = Annotated[tuple[T, ...], BeforeValidator(values_of)]
"""The kind of a field that takes one value or a list of them."""


def check(cls: Callable[..., T], where: str, given: Any, strict: bool = True) -> T:
    """A dataclass of checked values. strict: words are no numbers. Raises ConfigError."""
    try:
        checked = _schema(cls).validate_python(dict(mapping(where, given)), strict=strict)
        return cls(**{name: checked[key] for key, name in _attributes(cls).items() if key in checked})
    except ValidationError as error:
        raise _explained(error, cls, where) from None  # one line, without the library's own
    except ValueError as error:  # of the dataclass's own `__post_init__`
        raise ConfigError(f"{where}: {error}".removeprefix(": ")) from error


def combinations(where: str, given: Any) -> Iterator[dict[str, Any]]:
    """Every combination of a mapping's values, each of which is one value or a list of them. Raises ConfigError."""
    for key, value in mapping(where, given).items():
        if value == []:
            raise ConfigError(f"{where}.{key}={value}; {ONE_OR_MORE}")
    for values in itertools.product(*map(values_of, given.values())):
        yield dict(zip(given, values, strict=True))


def mapping(where: str, given: Any) -> Mapping[str, Any]:
    """What was given, if it has keys. Raises ConfigError."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}={given!r} has no keys; see accuracy --help for the keys of {where}")
    return given


@cache
def _attributes(cls: Any) -> dict[str, str]:
    """The fields' names by the keys that a user writes: the same, but for those in the class's KEYS."""
    renamed = getattr(cls, "KEYS", {})
    return {renamed.get(field.name, field.name): field.name for field in fields(cls)}


@cache
def _schema(cls: Any) -> TypeAdapter[Any]:
    kinds, defaults = get_type_hints(cls, include_extras=True), {each.name: each.default for each in fields(cls)}
    kinds |= {name: NotRequired[kinds[name]] for name, default in defaults.items() if default is not MISSING}
    given = TypedDict("Given", {key: kinds[name] for key, name in _attributes(cls).items()})  # type: ignore[misc]
    return TypeAdapter(with_config(ConfigDict(extra="forbid", arbitrary_types_allowed=True))(given))


def _explained(error: ValidationError, cls: Any, where: str) -> ConfigError:
    """The first thing wrong, in one line; a misspelt key before the one that it leaves without value."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    key, given, before = str(first["loc"][0]), first["input"], f"{where}." if where else ""
    path = before + key
    if first["type"] == "extra_forbidden":
        return unknown_key(path, [before + each for each in _attributes(cls)])
    if first["type"] == "missing":
        advice = "give one (accuracy --help lists every choice and key)"
        return ConfigError(f"configuration key {path!r} has no value; {advice}")
    if first["type"] == "literal_error":
        return unknown(path, given, re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    if first["type"] == "value_error":
        return ConfigError(f"{path}={given!r}; {first['ctx']['error']}")
    optional = type(None) in get_args(get_type_hints(cls, include_extras=True)[_attributes(cls)[key]])
    allowed = first["msg"].removeprefix("Input should be ") + (", or null" if optional else "")
    return ConfigError(f"{path}={given!r}; allowed: {allowed}")


def unknown_key(path: str, allowed: Iterable[str]) -> ConfigError:
    """A key that is none of its node's. allowed: full paths, as `path` is."""
    node, _, name = path.rpartition(".")
    siblings = (key.rpartition(".") for key in allowed)
    return unknown(f"{node or 'configuration'} key", name, [leaf for other, _, leaf in siblings if other == node])
