"""Parts found on disk: kernels, inputs and schedules are loaded from the source that a case names.

A source is a module's dotted name, or the path of a Python file.
"""

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from accuracy.core import given, own_code
from accuracy.core.case import Part, Scalar
from accuracy.core.errors import one_line


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


def module_of(source: str) -> str:
    """The dotted name of a source's module, or its file."""
    return source if source.endswith(".py") else source.partition(":")[0]


@dataclass(frozen=True)
class Function:
    """A function somebody named, the module that holds it, eight digits of its code, and the files that it needs."""

    function: Callable[..., Any]
    module: ModuleType
    code: str
    files: tuple[Path, ...] = ()


def load_function(name: str) -> Function:
    """The function at `package.module.function` or `FILE.py:function`, or one given as an object. Raises ValueError."""
    if name.startswith(given.PREFIX):
        found = given.find(name)
        return Function(found.function, ModuleType(name), found.code, found.files)
    return _load_function(name)


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
    files = {*own_code.files(found), *own_code.files(module), *_file(module)}  # of an installed module its file alone
    return Function(found, module, own_code.digest([*files])[:8], tuple(sorted(files)))


def _file(module: ModuleType) -> list[Path]:
    path = Path(getattr(module, "__file__", None) or "")
    return [path] if path.suffix == ".py" else []


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


def build_options(module: ModuleType, given: tuple[tuple[str, Scalar], ...]) -> Any:
    """The dataclass of the module's knobs with those that belong to it; None where it has none."""
    cls: Any = options_of(module)
    names = {field.name for field in fields(cls)} if cls else ()
    return cls and cls(**{key: value for key, value in given if key in names})
