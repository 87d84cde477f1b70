"""Which files of a user's decide what a function computes, and does this process run what they say?

In: a function and the module that it was found in. Out: the files of the modules that define it (behind re-exports,
decorators and partials) and of every module of the user's that these import, and a digest of their contents. Installed
packages and the standard library are none of the user's; their versions stand in run.json.
"""

import functools
import hashlib
import inspect
import os
import pickletools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from accuracy.core.closure import closure, digest_of, file_of
from accuracy.core.paths import PACKAGE

INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_OTHERWISE = os.urandom(8).hex()
"""In place of a file's digest where this process runs what the file no longer says: no other process has it."""


def files(function: Any, found_in: str = "", pickled: bytes | None = None) -> dict[str, Path]:
    """Name -> file, sorted by name. found_in: the module or FILE.py that was named; pickled: of a function that travels
    with its code, whose modules are those that its bytes name."""
    named = {found_in, *_defining(function), *_named_in(pickled)}
    starts = [name for each in named for name in _with_parents(each) if file_of(name) is not None]
    own = [name for name in starts if name == found_in or is_own_name(name)]
    return closure(own, is_own_name)


def digest(found: dict[str, Path]) -> str:
    """SHA-256 of the files; where a loaded module is not what its file says, one of this process alone."""
    stale = [name for name, path in found.items() if not _is_loaded_as(name, path)]
    return hashlib.sha256((digest_of(found) + _OTHERWISE * bool(stale)).encode()).hexdigest()


def is_own(path: Path) -> bool:
    """Whether a file is the user's: neither installed, nor the standard library's, nor this package's."""
    path = path.resolve()
    installed = any(part in INSTALLED for part in path.parts)
    return not installed and not any(path.is_relative_to(place) for place in (*LIBRARIES, PACKAGE))


def is_own_name(name: str) -> bool:
    """Whether a module is in a file of the user's."""
    path = file_of(name)
    return path is not None and is_own(path)


def _with_parents(name: str) -> list[str]:
    """Python executes the packages around a module, too."""
    if name.endswith(".py"):
        return [name]
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _defining(function: Any) -> set[str]:
    """Modules of the function, of what it wraps, calls or holds, and of the classes of objects among these."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kinds = type(each).__mro__ if not inspect.isroutine(each) and not inspect.isclass(each) else ()
        found |= {str(getattr(one, "__module__", "") or "") for one in (each, *kinds)}
        waiting += _behind(each)
    return found - {""}


def _behind(function: Any) -> Iterator[Any]:
    """What a function calls by holding it: wrapped, partial, bound, in a closure."""
    for name in ("__wrapped__", "__func__", "__self__"):
        yield from [each for each in [getattr(function, name, None)] if each is not None]
    if isinstance(function, functools.partial):
        yield from (each for each in (function.func, *function.args, *function.keywords.values()) if callable(each))
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not yet filled
            continue
        if callable(content):
            yield content


def _named_in(pickled: bytes | None) -> Iterator[str]:
    """Every text in the bytes that may be a module's name: what the function uses and does not carry."""
    for _, value, _ in pickletools.genops(pickled) if pickled else ():
        if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")):
            yield value


def _is_loaded_as(name: str, path: Path) -> bool:
    """Whether the functions of a module that this process has loaded are those that its file defines now."""
    module = _loaded(name, path)
    if module is None:
        return True
    try:
        defined = set(_codes(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)))
    except SyntaxError:
        return False
    return all(code in defined for code in _loaded_codes(module))


def _loaded(name: str, path: Path) -> ModuleType | None:
    if not name.endswith(".py"):
        return sys.modules.get(name)
    parts = (each for key, each in list(sys.modules.items()) if key.startswith("accuracy_part_"))
    return next((each for each in parts if getattr(each, "__file__", None) == str(path)), None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _loaded_codes(module: ModuleType) -> Iterator[CodeType]:
    """Of the functions and methods that the module itself defines."""

    def own(values: Iterable[Any]) -> Iterator[Callable[..., Any]]:
        for value in values:
            each = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None
            if inspect.isfunction(each) and each.__module__ == module.__name__:
                yield each

    classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    for namespace in (vars(module), *map(vars, classes)):
        for function in own(list(namespace.values())):
            if function.__code__.co_filename == getattr(module, "__file__", None):
                yield function.__code__
