"""What does a call ask for? The arguments of `measure` and `diagnose` as the configuration of a run."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accuracy.config.compose import compose, nodes
from accuracy.config.resolve import keys_of, replayed, resolved
from accuracy.core import plugins
from accuracy.core.errors import ConfigError

Function = Callable[..., Any]
Subjects = str | Function | Iterable[str | Function] | Mapping[str, Function]  # a mapping gives the functions' names
SETTINGS = ("dtype", "world_size", "seed", "inputs", "kernel", "world", "sharding", "layout", "device",
            "case_seconds")  # fmt: skip


def request(
    subjects: Subjects,
    arguments: Mapping[str, Any],
    words: tuple[str, ...] = (),
    functions: Mapping[str, Function] | None = None,
    keys: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the configuration of a run.

    arguments: of a call, None: as the words have it; words: overrides of the command line; functions: further ones,
    which other keys name as given:NAME; keys: further keys; defaults: of the problem, for what nobody gave. Raises
    ConfigError.
    """
    arguments = {name: plain(value) for name, value in arguments.items() if value is not None}
    given_keys = {_key(name) for name in arguments}
    settings = {name: arguments.pop(name) for name in SETTINGS if name in arguments}
    node = {"forward": "callable", "backward": "callable", "sharding": settings.pop("sharding", "contiguous"),
            "layout": settings.pop("layout", "bshd")}  # fmt: skip
    names, subject_functions = named(subjects)
    chosen = nodes("variant", names) if names else {}
    texts = plugins.hand_over({**subject_functions, **(functions or {})})
    if not texts:
        check_of_no_function(node["sharding"], node["layout"])
    handed = {name: {**node, "fn": texts[name]} for name in subject_functions}
    for group in ("kernel", "inputs"):
        if group in settings and not isinstance(settings[group], dict):
            settings[group] = nodes(group, settings[group] if isinstance(settings[group], list) else [settings[group]])
    worlds = nodes("world", [settings.pop("world", "simulated")])
    config = compose(*words)
    config |= {
        "workers": 1,
        "report": False,
        **settings,
        "variant": {**chosen, **handed},
        "world": worlds,
        **(keys or {}),
    }
    config["problem"] |= {**(defaults or {}), **arguments}
    return resolved(replayed(config, given_keys | keys_of(words)), given_keys - {"world"})


def check_of_no_function(sharding: str, layout: str) -> None:
    """Raises ConfigError where a sharding or a layout came without a function that it could be of."""
    if (sharding, layout) != ("contiguous", "bshd"):
        raise ConfigError("sharding and layout are those of a function; a variant has its own: drop them")


def _key(name: str) -> str:
    """Return an argument's name on the command line."""
    if name in ("sharding", "layout"):
        return f"variant.{name}"
    return name if name in SETTINGS else f"problem.{name}"


def named(subjects: Subjects) -> tuple[list[str], dict[str, Function]]:
    """Texts, and functions by name. Raises ConfigError."""
    if isinstance(subjects, Mapping):
        pairs = list(subjects.items())
    elif isinstance(subjects, str) or callable(subjects):
        pairs = [(_name(subjects), subjects)]
    elif isinstance(subjects, Iterable):
        pairs = [(_name(each), each) for each in subjects]
    else:
        pairs = [("", subjects)]
    if not pairs:
        raise ConfigError("nothing to measure; give a variant's name, a function, or a list of them")
    for name, each in pairs:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(f"{each!r} is no variant; allowed: a variant's name, or a function fn(q, k, v, *, ...)")
        if callable(each) and not (isinstance(name, str) and re.fullmatch(r"\w+", name) and name != "single_device"):
            raise ConfigError(f"{name!r} names no function of a caller's; give {{'another_name': function}}")
        if sum(name == other for other, _ in pairs) > 1:
            raise ConfigError(f"two are called {name}; give {{'name': function, 'other_name': function}}")
    functions = {name: each for name, each in pairs if not isinstance(each, str)}
    return [each for _, each in pairs if isinstance(each, str)], functions


def _name(subject: Any) -> str:
    """Of a variant or a function; of a lambda `lambda`, of a partial the name of what it calls."""
    called = getattr(subject, "func", subject)
    name = getattr(called, "__name__", type(called).__name__)
    return subject if isinstance(subject, str) else re.sub(r"\W", "", name)


def plain(value: Any) -> Any:
    """Numbers, words, lists and dicts as YAML has them; `torch.bfloat16` is a word."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return str(value).removeprefix("torch.")
