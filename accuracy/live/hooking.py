"""Bind every name of an attention function to a wrapper, and back again; and say in which layer a call stands.

Every name that is bound to a function is found, so that `from flash_attn import flash_attn_func` in somebody's module
is hooked too.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from accuracy.core.errors import ConfigError
from accuracy.core.plugins import load_function
from accuracy.live.functions import KNOWN, REGISTERED, Arguments, Function, Settings, named

Original = Callable[..., Any]
Call = Callable[[Function, Original, Sequence[str], tuple[Any, ...], dict[str, Any]], Any]
"""What a hooked call becomes: (function, the original, names of its parameters, args, kwargs) -> what it returns."""

OURS = ("accuracy.", "torch.")
HOMES = ("torch.nn.functional", "torch.nn.attention.flex_attention")
_inside = threading.local()  # a hooked function that calls another one is one call of attention


@contextmanager
def hooked(own: Iterable[tuple[Function, Original]], model: nn.Module | None, call: Call) -> Iterator[None]:
    """While this is open, calls of a user's own functions, of those of `KNOWN` that this process has imported, and of
    those in Hugging Face's registry go to `call`. What is compiled runs as it is written: its graphs hold the
    originals, and are neither left nor compiled again."""
    with ExitStack() as undo:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        for function, original in (*own, *((each, each.found) for each in KNOWN if callable(each.found))):
            hook = _hook(function, original, call)
            for holder, name in list(_bound(original, model)):
                undo.callback(setattr, holder, name, original)
                setattr(holder, name, hook)
        for registry in _registries():
            for name, original in list(registry.items()):
                if not getattr(original, "__module__", "").startswith("transformers."):  # those call known functions
                    undo.callback(registry.__setitem__, name, original)
                    registry[name] = _hook(REGISTERED, original, call)
        for module in _eager(model):
            undo.callback(setattr, module, "eager_attention_forward", module.eager_attention_forward)
            module.eager_attention_forward = _hook(REGISTERED, module.eager_attention_forward, call)
        yield


def own(function: str | Callable[..., Any], layout: str) -> tuple[Function, Original]:
    """A function of a user's, by name or itself. Raises ConfigError."""
    if not callable(function):
        try:
            found = load_function(function).function
        except ValueError as error:
            raise ConfigError(f"functions: {error}") from error
        return own(found, layout)
    parameters = inspect.signature(function).parameters
    names = [*parameters]
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}

    def settings(arguments: Arguments, q: Tensor, k: Tensor) -> Settings:
        return named({**defaults, **arguments}, q, k)

    path = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
    for tensors in (("qkv",), ("q", "kv")):
        if {*tensors} <= {*names}:
            return Function(path, tensors, layout, settings=settings), function
    letters = [next((name for name in names if name.startswith(letter)), "") for letter in "qkv"]
    if not all(letters):
        raise ConfigError(f"functions: {path} has parameters {', '.join(names)}; allowed: some that begin with q, k, v")
    return Function(path, tuple(letters), layout, settings=settings), function


def _hook(function: Function, original: Original, call: Call) -> Original:
    given = () if function.parameters else inspect.signature(original).parameters.values()
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = function.parameters or tuple(each.name for each in given if each.kind in positional)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "yes", False):
            return original(*args, **kwargs)
        _inside.yes = True
        try:
            with torch.compiler.set_stance("default"):  # an attention that is compiled by itself stays so
                return call(function, original, parameters, args, kwargs)
        finally:
            _inside.yes = False

    update_wrapper(hooked, original)
    return hooked


def _bound(function: Callable[..., Any], model: nn.Module | None) -> Iterator[tuple[dict[str, Any] | object, str]]:
    """(holder, name) of each: modules' globals, the model's modules and their classes. Not this package's own, and of
    torch's only where users call it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and name not in HOMES:
            continue
        yield from ((module, key) for key in _keys(module, function))
    for layer in model.modules() if model is not None else ():
        yield from ((layer, key) for key in _keys(layer, function))
    for kind in {type(layer) for layer in model.modules()} if model is not None else ():
        if not kind.__module__.startswith(OURS):
            yield from ((kind, key) for key, x in list(vars(kind).items()) if x is function)


def _registries() -> list[dict[str, Any]]:
    """Hugging Face's registries of attention functions, the models' own among them; none where nothing imported it."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if kind is None:
        return []
    own = {
        id(x._local_mapping): x._local_mapping
        for name, module in list(sys.modules.items()) if name.startswith("transformers.")
        for x in list(vars(module).values()) if isinstance(x, kind)
    }  # fmt: skip
    return [kind._global_mapping, *own.values()]


def _eager(model: nn.Module | None) -> Iterator[Any]:
    """The modules whose `eager_attention_forward` a model of Hugging Face calls."""
    for name in sorted({type(layer).__module__ for layer in model.modules()}) if model is not None else ():
        module = sys.modules.get(name)
        if name.startswith("transformers") and callable(getattr(module, "eager_attention_forward", None)):
            yield module


def layer_of(names: Mapping[int, str], arguments: Mapping[str, Any]) -> str:
    """The name of the innermost module of the model in whose `forward` this call is made; "" where there is none."""
    given = names.get(id(arguments.get("module")))
    frame = sys._getframe(1)
    while given is None and frame is not None:
        given = names.get(id(frame.f_locals.get("self")))
        frame = frame.f_back  # type: ignore[assignment]
    return given or ""


def _keys(holder: object, function: Callable[..., Any]) -> list[str]:
    try:
        return [key for key, x in list(vars(holder).items()) if x is function]
    except Exception:  # a module that makes its names up
        return []
