"""Code that a case names: kernels, inputs and schedules on disk, and users' functions.

A part's source is a module's dotted name, or the path of a Python file. A function is named in the same way, or was
handed over as an object (`hand_over`), which a configuration of plain words calls `given:NAME`, in this process and in
those of the ranks that it starts.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from accuracy.core import own_code
from accuracy.core.case import Part, Scalar
from accuracy.core.errors import ConfigError, one_line

PREFIX = "given:"
FUNCTIONS = "functions.pickle"
STARTED, PROCESS = time.time(), os.urandom(8)


@cache
def load(source: str) -> ModuleType:
    """The module at a source, or what stands in its `PARTS` for MODULE:NAME. Raises ImportError or the file's own
    error."""
    if not source.endswith(".py"):
        module = importlib.import_module(module_of(source))
        part = source.partition(":")[2]
        return module.PARTS[part] if part else module
    if (folder := str(Path(source).parent)) not in sys.path:  # as Python does for a script, but last
        sys.path.append(folder)
    name = f"accuracy_part_{Path(source).stem}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file at {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def version(distribution: str) -> str | None:
    """The installed version of a distribution, or None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_of(source: str) -> str:
    """The dotted name of a source's module, or its file."""
    return source if source.endswith(".py") else source.partition(":")[0]


def read_digest(part: Part) -> str:
    """Of what a part reads beside its source, as its `code(options)` says; empty where it reads nothing."""
    module = load(part.source)
    return str(module.code(build_options(module, part.options))) if hasattr(module, "code") else ""


def options_of(module: ModuleType) -> Callable[..., Any] | None:
    """The frozen dataclass of a part's knobs, None where it has none: of inputs their `Options`, of a schedule its
    `SCHEDULE.options`, of a kernel `KERNEL` itself."""
    schedule = getattr(module, "SCHEDULE", None)
    return schedule.options if schedule else getattr(module, "KERNEL", getattr(module, "Options", None))


def default_options(module: ModuleType) -> tuple[tuple[str, Scalar], ...]:
    """The module's knobs at their defaults, sorted by name."""
    cls = options_of(module)
    return () if cls is None else tuple(sorted(vars(cls()).items()))


def default_part(source: str) -> Part:
    """The part at a source, by the last of its name, with its knobs at their defaults."""
    return Part(re.split("[.:]", source)[-1], source, default_options(load(source)))


def build_options(module: ModuleType, options: tuple[tuple[str, Scalar], ...]) -> Any:
    """The dataclass of the module's knobs with those that belong to it; None where it has none."""
    cls: Any = options_of(module)
    names = {field.name for field in fields(cls)} if cls else ()
    return cls and cls(**{key: value for key, value in options if key in names})


@dataclass(frozen=True)
class Function:
    """A user's function, the module that holds it, eight digits of its code, and the files that it needs.

    pickled: of one that was handed over as an object, for other processes; None: `why` it cannot go there.
    """

    function: Callable[..., Any]
    module: ModuleType
    code: str
    files: tuple[Path, ...] = ()
    pickled: bytes | None = None
    why: str = ""


_handed_over: dict[str, Function] = {}


def load_function(name: str) -> Function:
    """The function at `package.module.function` or `FILE.py:function`, or one handed over as `given:NAME`. Raises
    ValueError."""
    if not is_handed_over(name):
        return _load_function(name)
    if name not in _handed_over:
        raise ValueError(f"fn={name} was handed over in another process; name it FILE.py:function")
    return _handed_over[name]


@cache
def _load_function(name: str) -> Function:
    source, _, function = name.rpartition(":" if ":" in name else ".")
    if not source or function == "py":
        raise ValueError(f"fn={name!r} names no function; allowed: package.module.function or FILE.py:function")
    try:
        source = str(Path(source).resolve()) if source.endswith(".py") else source
        module = load(source)
    except Exception as error:
        raise ValueError(f"fn={name} cannot be loaded ({one_line(error)}); correct it or set PYTHONPATH") from error
    if not callable(getattr(module, function, None)):
        raise ValueError(f"fn={name}: {source} has no function {function!r}; correct the name")
    found = getattr(module, function)
    own = Path(getattr(module, "__file__", None) or "")
    alone = {own} if own.suffix == ".py" else {}  # of an installed module its file alone
    files = {*own_code.files(found), *own_code.files(module), *alone}
    return Function(found, module, own_code.digest([*files])[:8], tuple(sorted(files)))


def is_handed_over(name: str) -> bool:
    """Whether a configuration means a function that a caller handed over as an object."""
    return name.startswith(PREFIX)


def hand_over(functions: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Keep functions by name, in place of all earlier ones; return what a configuration calls each. The code of a
    function whose files were edited since this process started is no other process's."""
    _handed_over.clear()
    for name, function in functions.items():
        pickled, why = _pickle(function)
        files = own_code.files(function)
        edited = any(path.stat().st_mtime > STARTED for path in files)  # this process may run what they said before
        content = (pickled or _source(function)) + own_code.digest(files).encode() + PROCESS * edited
        code = hashlib.sha256(content).hexdigest()[:8]
        _handed_over[PREFIX + name] = Function(function, ModuleType(PREFIX + name), code, tuple(files), pickled, why)
    return {name: PREFIX + name for name in functions}


def store_functions(folder: Path) -> None:
    """Write the functions that were handed over for the processes that this one starts (cloudpickle). folder: one that
    only this user can read; nothing else is ever unpickled."""
    functions = {name: (each.code, each.pickled) for name, each in _handed_over.items() if each.pickled is not None}
    (folder / FUNCTIONS).write_bytes(pickle.dumps(functions))


def restore_functions(folder: Path) -> None:
    """Read what `store_functions` wrote, in a process that its writer started."""
    for name, (code, pickled) in pickle.loads((folder / FUNCTIONS).read_bytes()).items():
        _handed_over[name] = Function(_unpickled(pickled), ModuleType(name), code, pickled=pickled)


def check_travels(name: str) -> None:
    """Raises ConfigError where a function that was handed over cannot go to other processes."""
    if (found := load_function(name)).pickled is None:
        raise ConfigError(
            f"{name.removeprefix(PREFIX)} cannot go to the processes of its ranks ({found.why}); make what it refers to"
            " inside the function, or measure it with world_size=1"
        )


def _unpickled(pickled: bytes) -> Callable[..., Any]:
    """The function; where it cannot be loaded here, one that says why when it is called."""
    try:
        function: Callable[..., Any] = pickle.loads(pickled)
    except Exception as error:  # whatever a user's module does when it is imported
        why = f"the function cannot be loaded in a rank's process ({type(error).__name__}: {error})"

        def function(*tensors: Any, **how: Any) -> Any:
            raise RuntimeError(why)

    return function


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
