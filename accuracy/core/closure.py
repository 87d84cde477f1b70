"""Which source files does a module need? Its own and those of every module that it imports, directly or not.

In: modules' names or Python files, and the packages whose imports are followed. Out: their files. Imports are read from
the source, those inside functions too, so a module that is imported late counts as well. Nothing is executed.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


def closure(modules: Iterable[str], packages: tuple[str, ...] = ("accuracy",)) -> dict[str, Path]:
    """Name -> file of the modules and of all that they import from `packages`, sorted by name."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [each for each in _imports(path, name) if each.partition(".")[0] in packages]
    return dict(sorted(found.items()))


def digest_of(files: dict[str, Path]) -> str:
    """SHA-256 of the files' names and contents."""
    content = hashlib.sha256()
    for name, path in files.items():
        content.update(name.rpartition("/")[2].encode() + _bytes(path))  # wherever a user's file lies
    return content.hexdigest()


@cache
def _bytes(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _file(name: str) -> Path | None:
    """The Python file of a module; None for a name in a module and for what is not Python. Imports nothing."""
    if name.endswith(".py"):
        return Path(name)
    top, *inside = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is not None and not inside and str(spec.origin).endswith(".py"):
        return Path(str(spec.origin))
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        place = Path(folder, *inside)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file
    return None


@cache
def _imports(path: Path, name: str) -> frozenset[str]:
    """Every name that may be an imported module: `from a import b` names a and a.b."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in _executed(ast.parse(_bytes(path))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {start, *(f"{start}.{each.name}" for each in node.names)}
    return frozenset(found)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)
