"""Which source files does a module need? Its own and those of every module that it imports, directly or not.

In: modules' names or Python files, and the packages whose imports are followed. Out: their files. Imports are read from
the source, those inside functions too, so a module that is imported late counts as well. Nothing is executed.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

BLOCKS = "body", "handlers", "orelse", "finalbody", "cases"
"""Where a statement keeps others; expressions, nine nodes of ten, hold none."""


def closure(modules: Iterable[str], follow: Callable[[str], bool] | None = None) -> dict[str, Path]:
    """Name -> file of the modules and of all that they import, sorted by name.

    follow: whether an imported name counts; by default, whether it is this package's.
    """
    follow = follow or (lambda name: name.partition(".")[0] == "accuracy")
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = file_of(name)
        if path is None:
            continue
        found[name] = path
        waiting += [each for each in _imports(path, name, _stamp(path)) if follow(each)]
    return dict(sorted(found.items()))


def digest_of(files: dict[str, Path]) -> str:
    """SHA-256 of the files' names and contents."""
    named = (name.rpartition("/")[2].encode() + _bytes(path, _stamp(path)) for name, path in files.items())
    return hashlib.sha256(b"".join(named)).hexdigest()  # wherever a user's file lies


def _stamp(path: Path) -> tuple[int, int]:
    """A file that changes has another one."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size


@cache
def _bytes(path: Path, stamp: tuple[int, int]) -> bytes:
    return path.read_bytes()


def file_of(name: str) -> Path | None:
    """The Python file of a module; None for a name in a module and for what is not Python. Imports nothing."""
    if name.endswith(".py"):
        return Path(name) if Path(name).is_file() else None
    return _file_of_ours(name) if name.startswith("accuracy.") else _file_of(name)


def _file_of(name: str) -> Path | None:
    top, *inside = name.split(".")
    spec = _spec(top)
    if spec is not None and not inside and str(spec.origin).endswith(".py"):
        return Path(str(spec.origin))
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        place = Path(folder, *inside)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file
    return None


_file_of_ours = cache(_file_of)
"""The package's own modules stay where they are: each case asks for about a hundred."""


def _spec(top: str) -> ModuleSpec | None:
    """Of a package or module at the top; None where Python has none, as of `__main__`."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None


Imports = dict[tuple[Path, str, tuple[int, int]], frozenset[str]]
"""By file, module and the file's stamp: what it imports."""
_known: Imports = {}


def known() -> Imports:
    """All that this process has read. To read it again would take a worker a quarter of a second."""
    return dict(_known)


def learn(imports: Imports) -> None:
    """What another process has read."""
    _known.update(imports)


def _imports(path: Path, name: str, stamp: tuple[int, int]) -> frozenset[str]:
    """Every name that may be an imported module: `from a import b` names a and a.b."""
    if (key := (path, name, stamp)) not in _known:
        _known[key] = _read_imports(*key)
    return _known[key]


def _read_imports(path: Path, name: str, stamp: tuple[int, int]) -> frozenset[str]:
    package = name if path.name == "__init__.py" else "" if name.endswith(".py") else name.rpartition(".")[0]
    found: set[str] = set()
    try:
        nodes = list(_executed(ast.parse(_bytes(path, stamp))))
    except SyntaxError:  # whoever imports it hears of it
        return frozenset()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {start, *(f"{start}.{each.name}" for each in node.names)}
    return frozenset(found)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below, where imports are, without what only a type checker reads."""
    for child in (each for name in BLOCKS for each in getattr(node, name, ())):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)
