"""What did a user's function change that later cases would feel? Functions of torch that were replaced, settings,
modes and hooks. Numbers of its own case may feel it too, but those are its own."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch

from accuracy.core.paths import PACKAGE
from accuracy.runtime.arithmetic import SETTINGS

MODULES = (
    "builtins", "math", "numpy", "torch", "torch.autograd", "torch.distributed", "torch.linalg", "torch.nn",
    "torch.nn.functional", "torch.special",
)  # fmt: skip
CLASSES = torch.Tensor, torch.nn.Module, torch.autograd.Function
SMALLEST = 2.0**-1074


def _hooks() -> tuple[int, ...]:
    names = [name for name in vars(torch.nn.modules.module) if name.startswith("_global_") and name.endswith("hooks")]
    return tuple(len(getattr(torch.nn.modules.module, name)) for name in names)


STATES: dict[str, Callable[[], Any]] = {
    **{name: get for name, (get, _) in SETTINGS.items()},
    "a torch function mode": torch._C._len_torch_function_stack,
    "a torch dispatch mode": torch._C._len_torch_dispatch_stack,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "hooks of all modules": _hooks,
    "hooks of saved tensors": lambda: bool(torch._C._autograd._top_saved_tensors_default_hooks(True)),
    "numbers below the normal ones": lambda: bool(torch.tensor(SMALLEST, dtype=torch.float64) * 1 > 0),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
}  # fmt: skip
"""What is compared beside replaced functions, by what it is called where it differs."""


class Changes:
    """What is no longer as it was when this was made."""

    def __init__(self) -> None:
        own = [name for name in [*sys.modules] if name.partition(".")[0] == PACKAGE.name]
        holders = [sys.modules[name] for name in (*MODULES, *own) if name in sys.modules]
        self._attributes = [(each, _attributes_of(each)) for each in (*holders, *CLASSES)]
        self._states = self._read()

    @staticmethod
    def _read() -> dict[str, Any]:
        found = {}
        for name, state in STATES.items():
            with suppress(Exception):  # of a torch that has it otherwise
                found[name] = state()
        return found

    def _replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """Functions and classes whose names now mean others; a name that is new is none of them, nor what torch's
        compiler puts in place when it is first used."""
        for holder, before in self._attributes:
            now = _attributes_of(holder)
            for name, value in before.items():
                if callable(value) and now.get(name) is not value and not _is_torch_s(now.get(name)):
                    yield holder, name, value

    def names(self) -> list[str]:
        """Return what changed, `torch.nn.functional.softmax` or words."""
        replaced = [f"{_name_of(holder)}.{name}" for holder, name, _ in self._replaced()]
        now = self._read()
        return replaced + [name for name, value in self._states.items() if now.get(name) != value]

    def undo(self) -> None:
        """Put replaced functions back; states stay."""
        for holder, name, value in [*self._replaced()]:
            setattr(holder, name, value)


def _attributes_of(holder: Any) -> dict[str, Any]:
    """Of a module, or of a class with those of its bases, which a new one may hide."""
    if not isinstance(holder, type):
        return dict(vars(holder))
    return {name: value for base in reversed(holder.__mro__) for name, value in vars(base).items()}


def _is_torch_s(value: Any) -> bool:
    """Whether a function was written in Python in a private module of torch, or a class anywhere in it:
    `torch.Storage` goes with the default dtype."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__")).startswith("torch._")  # a wrapper has its function's __module__
    return isinstance(value, type) and str(value.__module__).startswith("torch")


def _name_of(holder: Any) -> str:
    return holder.__name__ if not isinstance(holder, type) else f"{holder.__module__}.{holder.__qualname__}"


def told(names: list[str]) -> str:
    """Return the names as one text, a few of them."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
