"""Which source files of a user's decide what a function computes?

In: a function, or a module of the user's. Out: the modules of the user's that it reaches through the globals of its
own module (behind re-exports, decorators and partials), the source files of the packages that these belong to, and a
digest of the files. Installed packages and the standard library are not the user's; their versions stand in run.json.
"""

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from accuracy.core.paths import PACKAGE

INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def is_own(path: Path) -> bool:
    """Whether a file is the user's: neither installed, nor the standard library's, nor this package's."""
    path = path.resolve()
    installed = any(part in INSTALLED for part in path.parts)
    return not installed and not any(path.is_relative_to(folder) for folder in (*LIBRARIES, PACKAGE))


def modules(part: Any) -> dict[str, Path]:
    """Name -> file of each module of the user's that a function or a module reaches, sorted by name. The script that
    Python was started with is left out: of its functions, what they refer to counts."""
    found: dict[str, Path] = {}
    seen, waiting = {"__main__"}, [*_referred(part)]
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        module = sys.modules.get(name)
        path = Path(getattr(module, "__file__", None) or "")
        if path.suffix == ".py" and is_own(path):
            found[name] = path
            waiting += filter(None, map(module_name, list(vars(module).values())))
    return dict(sorted(found.items()))


def files(part: Any) -> list[Path]:
    """The source files of these modules, and of a module in a package every file of the package."""
    found: set[Path] = set()
    for path in modules(part).values():
        top = path.parent
        while (top.parent / "__init__.py").exists():
            top = top.parent
        found |= {*top.rglob("*.py")} if (top / "__init__.py").exists() else {path}
    return sorted(found)


def digest(paths: list[Path]) -> str:
    """SHA-256 of the files' names and contents, wherever their folder lies."""
    each = sorted(hashlib.sha256(path.name.encode() + path.read_bytes()).digest() for path in paths)
    return hashlib.sha256(b"".join(each)).hexdigest()


MOST_LAYERS = 512


def layers(part: Any) -> list[Any]:
    """Return a function and what it wraps, binds, calls or has in its closure, and the forward of a torch module. A
    mock answers every name with another mock, so at most `MOST_LAYERS` objects are returned."""
    found: list[Any] = []
    waiting = [part, type(part).__call__ if callable(part) else None]
    while waiting and len(found) < MOST_LAYERS:
        each = waiting.pop(0)
        if each is None or any(each is other for other in found):
            continue
        found.append(each)
        for name in ("__wrapped__", "__func__", "func", "forward"):
            with suppress(Exception):  # whatever a proxy raises for an attribute
                waiting.append(getattr(each, name, None))
        with suppress(Exception):  # ValueError: of a cell that is not filled yet
            waiting += [cell.cell_contents for cell in getattr(each, "__closure__", None) or ()]
    return found


def _referred(part: Any) -> Iterator[str]:
    """The modules of a function's layers, and of what these bind and refer to by name."""
    for each in layers(part):
        values = [each, type(each), type(getattr(each, "__self__", None))]  # of a callable object, of a method's object
        values += [*each.args, *each.keywords.values()] if isinstance(each, partial) else []
        with suppress(TypeError, ValueError):
            used = inspect.getclosurevars(each)
            values += [*used.globals.values(), *used.nonlocals.values()]
        yield from filter(None, map(module_name, values))
        yield str(getattr(each, "__globals__", {}).get("__name__", ""))  # a decorator's function names another module


def module_name(value: Any) -> str | None:
    """The name of a module, or of the module that defines a function, a class, or an object's class."""
    with suppress(Exception):  # whatever a proxy raises for an attribute
        name = value.__name__ if isinstance(value, ModuleType) else value.__module__
        return name if isinstance(name, str) else None
    return None
