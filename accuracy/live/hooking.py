"""Bind every name of an attention function to a wrapper, and back again."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any

import torch
from torch import nn

from accuracy.core.errors import ConfigError
from accuracy.core.plugins import load_function
from accuracy.live import places
from accuracy.live.functions import KNOWN, REGISTERED, Function, named

Original = Callable[..., Any]
Call = Callable[[Function, Original, Sequence[str], tuple[Any, ...], dict[str, Any]], Any]
"""What a hooked call becomes: (function, the original, names of its parameters, args, kwargs) -> what it returns."""

_inside = threading.local()  # a hooked function that calls another one is one call of attention


@contextmanager
def hooked(functions: Iterable[tuple[Function, Original]], model: nn.Module | None, call: Call) -> Iterator[None]:
    """While this is open, calls of the functions, and of those in Hugging Face's registry, go to `call`. What is
    compiled runs as it is written: its graphs hold the originals, and are neither left nor compiled again."""
    with ExitStack() as undo:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        for function, original in functions:
            hook = _hook(function, original, call)
            for holder, name in list(places.bound(original, model)):
                undo.callback(setattr, holder, name, original)
                setattr(holder, name, hook)
        for registry in places.registries():
            for name, original in list(registry.items()):
                if not getattr(original, "__module__", "").startswith("transformers."):  # those call known functions
                    undo.callback(registry.__setitem__, name, original)
                    registry[name] = _hook(REGISTERED, original, call)
        for module in places.eager(model):
            undo.callback(setattr, module, "eager_attention_forward", module.eager_attention_forward)
            module.eager_attention_forward = _hook(REGISTERED, module.eager_attention_forward, call)
        yield


def known() -> Iterator[tuple[Function, Original]]:
    """Those of `KNOWN` that this process has imported."""
    for function in KNOWN:
        module, _, name = function.path.partition(":")
        if callable(found := getattr(sys.modules.get(module), name, None)):
            yield function, found


def own(function: str | Callable[..., Any], layout: str) -> tuple[Function, Original]:
    """A function of a user's, by name or itself. Raises ConfigError."""
    if not callable(function):
        try:
            found = load_function(function).function
        except ValueError as error:
            raise ConfigError(f"functions: {error}") from error
        return own(found, layout)
    names = [*inspect.signature(function).parameters]
    path = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
    for tensors in (("qkv",), ("q", "kv")):
        if {*tensors} <= {*names}:
            return Function(path, tensors, layout, told=named), function
    letters = [next((name for name in names if name.startswith(letter)), "") for letter in "qkv"]
    if not all(letters):
        raise ConfigError(f"functions: {path} has parameters {', '.join(names)}; allowed: some that begin with q, k, v")
    return Function(path, tuple(letters), layout, told=named), function


def _hook(function: Function, original: Original, call: Call) -> Original:
    parameters = function.parameters or _positional(original)

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


def _positional(function: Original) -> tuple[str, ...]:
    """Names of the parameters that arguments without a name are for."""
    given = inspect.signature(function).parameters.values()
    return tuple(each.name for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))
