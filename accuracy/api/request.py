"""What does a call ask for? The arguments of a public function as the configuration of a run."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from typing_extensions import TypedDict

from accuracy.config.resolve import composed, keys_of, nodes, replayed, resolved
from accuracy.core import plugins
from accuracy.core.errors import ConfigError
from accuracy.live.functions import known
from accuracy.runtime import given_mask

Function = Callable[..., Any]
Subjects = str | Function | Iterable[str | Function] | Mapping[str, Function]  # a mapping gives the functions' names
Whole = int | Sequence[int]
Real = float | Sequence[float]
Dtypes = Literal["bfloat16", "float16", "float32", "float64"] | str | torch.dtype | Sequence[str | torch.dtype]
Masks = Literal["causal", "causal_top_left", "full"]
Problem = TypedDict("Problem", {  # noqa: UP013  # a third of the lines
    "batch": Whole, "seqlen": Whole, "seqlen_q": Whole | None, "heads": Whole, "heads_kv": Whole | None,
    "head_dim": Whole, "head_dim_v": Whole | None, "mask": Masks | Sequence[Masks], "window": Whole | None,
    "documents": str | Sequence[str | int | Sequence[int]] | None, "softmax_scale": Real | None,
    "softcap": Real | None, "sinks": Real | None, "padding": str | None,
    "attn_mask": torch.Tensor | Callable[..., torch.Tensor] | None,
}, total=False)  # fmt: skip
"""The keywords `**problem`: each a value, or a list of them as an axis."""
OF_FUNCTIONS = {"sharding": "contiguous", "layout": "bshd", "arithmetic": None}
"""Settings that a function alone takes, with their defaults; a variant has its own."""
SETTINGS = ("dtype", "world_size", "seed", "inputs", "kernel", "world", *OF_FUNCTIONS, "device", "case_seconds")


def asked(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a public function was called with, those of the problem among them.

    Args:
        call: the function's `locals()`, in which `problem` has the keywords that its signature does not name.
    """
    return {name: call[name] for name in SETTINGS if name in call} | call["problem"]


def request(
    subjects: Subjects, arguments: Mapping[str, Any], words: Sequence[str] = (),
    functions: Mapping[str, Function] | None = None, keys: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of a run.

    Args:
        subjects: what is measured.
        arguments: as `asked` returns them; None: as the words have it.
        words: overrides of the command line.
        functions: further ones, which other keys name as given:NAME.
        keys: further keys.
        defaults: of the problem, for what nobody chose.

    Raises:
        ConfigError: for an argument that cannot be.
    """
    if isinstance(sinks := arguments.get("sinks"), torch.Tensor) and sinks.dim():
        raise ConfigError("sinks is a tensor; give a number x, head h has the sink x + h / H, or a list of them")
    given = {} if arguments.get("attn_mask") is None else _masked(arguments)
    arguments = {name: plain(value) for name, value in {**arguments, **given}.items() if value is not None}
    names, subject_functions = named(subjects)
    for fn in subject_functions.values():
        if (found := known(fn)) and found.mask:
            arguments.setdefault("mask", found.mask)
    of_problem = {name: f"problem.{name}" for name in arguments if name not in SETTINGS}
    chosen = {f"variant.{name}" if name in OF_FUNCTIONS else of_problem.get(name, name) for name in arguments}
    settings = {name: arguments.pop(name) for name in SETTINGS if name in arguments}
    node = {"forward": "callable", "backward": "callable"}
    node |= {name: settings.pop(name, default) for name, default in OF_FUNCTIONS.items()}
    variants = nodes("variant", names) if names else {}
    texts = plugins.hand_over({**subject_functions, **(functions or {})})
    if not texts:
        check_of_no_function(node)
    variants |= {name: {**node, **_known(fn, node), "fn": texts[name]} for name, fn in subject_functions.items()}
    for group in ("kernel", "inputs"):
        if group in settings and not isinstance(settings[group], dict):
            settings[group] = nodes(group, settings[group] if isinstance(settings[group], list) else [settings[group]])
    world = nodes("world", [settings.pop("world", "simulated")])
    config = composed(*words)
    config |= {"workers": 1, "report": False, **settings, "variant": variants, "world": world, **(keys or {})}
    config["problem"] |= {**(defaults or {}), **arguments}
    said = keys_of(words)
    everywhere = chosen - {"world"} | {each for each in said if each.startswith("problem.")}
    return resolved(replayed(config, chosen | said), everywhere)


def _masked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of a mask and, where the caller gave no others, its sizes and no second mask."""
    name, fitting = given_mask.keep(arguments["attn_mask"]), given_mask.sizes(arguments["attn_mask"])
    return {"mask": "full", **fitting, **{key: x for key, x in arguments.items() if x is not None}, "attn_mask": name}


def _known(fn: Function, node: Mapping[str, Any]) -> dict[str, str]:
    """Return the layout and the sharding of a function that is known by its name, where the caller gave none."""
    found = known(fn)
    if found is None:
        return {}
    its = {"layout": found.called_in, "sharding": found.sharding or "contiguous"}
    return {name: value for name, value in its.items() if node[name] == OF_FUNCTIONS[name]}


def check_of_no_function(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError where a sharding or a layout came without a function that it could be of."""
    if any(arguments[name] != default for name, default in OF_FUNCTIONS.items()):
        raise ConfigError(f"{', '.join(OF_FUNCTIONS)} are those of a function; a variant has its own: drop them")


def named(subjects: Subjects) -> tuple[list[str], dict[str, Function]]:
    """Return the texts among subjects, and the functions by name. Raises ConfigError."""
    if isinstance(subjects, Mapping):
        pairs = list(subjects.items())
    elif isinstance(subjects, Iterable) and not isinstance(subjects, str) and not callable(subjects):
        pairs = [(_name(each), each) for each in subjects]
    else:
        pairs = [(_name(subjects), subjects)]
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
    """Return the name of a variant or a function; of a lambda `lambda`, of a partial the name of what it calls, of what
    torch.compile returned another than its own."""
    called = getattr(subject, "func", subject)
    name = getattr(called, "__name__", type(called).__name__)
    name = f"compiled_{name}" if hasattr(subject, "_torchdynamo_orig_callable") else name
    return subject if isinstance(subject, str) else re.sub(r"\W", "", name)


def plain(value: Any) -> Any:
    """Return numbers, words, lists and dicts as YAML has them; `torch.bfloat16` is a word."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return str(value).removeprefix("torch.")
