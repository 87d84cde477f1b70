"""Which functions did a caller hand over as objects? A configuration of plain words names them `given:NAME`.

In: a function and its name. Out: the function for that name, in this process and in the ranks that it starts, to which
it travels in a file of a folder that only this user can read (cloudpickle). Nothing else is ever unpickled.
"""

import hashlib
import importlib.machinery
import inspect
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy.core import own_code
from accuracy.core.errors import ConfigError, one_line

PREFIX = "given:"
FILE = "functions.pickle"
STARTED, PROCESS = time.time(), os.urandom(8)


@dataclass(frozen=True)
class Given:
    """A function, eight digits of its code, how it is pickled (None: why it cannot be), and its files here."""

    function: Callable[..., Any]
    code: str
    pickled: bytes | None
    why: str = ""
    files: tuple[Path, ...] = ()


_given: dict[str, Given] = {}


def give(functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Keep functions by name, in place of all earlier ones; return what a configuration calls each. The code of a
    function whose files were edited since this process started is no other process's."""
    _given.clear()
    for name, function in functions.items():
        pickled, why = _pickle(function)
        files = own_code.files(function)
        edited = any(path.stat().st_mtime > STARTED for path in files)  # this process may run what they said before
        content = (pickled or _source(function)) + own_code.digest(files).encode() + PROCESS * edited
        _given[name] = Given(function, hashlib.sha256(content).hexdigest()[:8], pickled, why, tuple(files))
    return {name: PREFIX + name for name in functions}


def find(text: str) -> Given:
    """The function called `given:NAME`. Raises ValueError where this process has none."""
    name = text.removeprefix(PREFIX)
    if name not in _given:
        raise ValueError(f"fn={text} was handed over in another process; name it FILE.py:function")
    return _given[name]


def store(folder: Path) -> None:
    """Write the functions for the processes that this one starts. folder: one that only this user can read."""
    functions = {name: (each.code, each.pickled) for name, each in _given.items() if each.pickled is not None}
    (folder / FILE).write_bytes(pickle.dumps(functions))


def restore(folder: Path) -> None:
    """Read what `store` wrote, in a process that its writer started."""
    for name, (code, pickled) in pickle.loads((folder / FILE).read_bytes()).items():
        _given[name] = Given(_unpickled(pickled), code, pickled)


def _unpickled(pickled: bytes) -> Callable[..., Any]:
    """The function; where it cannot be loaded here, one that says why when it is called."""
    try:
        function: Callable[..., Any] = pickle.loads(pickled)
    except Exception as error:  # whatever a user's module does when it is imported
        why = f"the function cannot be loaded in a rank's process ({type(error).__name__}: {error})"

        def function(*tensors: Any, **how: Any) -> Any:
            raise RuntimeError(why)

    return function


def check_travels(text: str) -> None:
    """Raises ConfigError where a function cannot go to other processes."""
    given = find(text)
    if given.pickled is None:
        raise ConfigError(
            f"{text.removeprefix(PREFIX)} cannot go to the processes of its ranks ({given.why}); make what it refers to"
            " inside the function, or measure it with world_size=1"
        )


def _pickle(function: Callable[..., Any]) -> tuple[bytes | None, str]:
    """The function's bytes, or why there are none."""
    import cloudpickle  # type: ignore[import-untyped]

    try:
        with _by_value(cloudpickle, getattr(function, "__module__", None)):
            return bytes(cloudpickle.dumps(function)), ""
    except Exception as error:  # whatever an object does to be pickled
        return None, one_line(error)[:200]


@contextmanager
def _by_value(cloudpickle: Any, name: str | None) -> Iterator[None]:
    """A function of a module that another process could not import (a notebook's, a test's) goes with its code."""
    module = sys.modules.get(name or "")
    if module is None or name == "__main__" or _importable(name or ""):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(top) is not None


def _source(function: Callable[..., Any]) -> bytes:
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        return repr(type(function)).encode()
