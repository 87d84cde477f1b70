"""Are the YAML files of a user's folder of parts fit to be read? Hydra reads them before any check of ours."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from accuracy.core.errors import ConfigError

MOST_VALUES = 10_000  # of a file, its aliases written out; the package's own files have below 100


def check_sizes(folders: Iterable[Path]) -> None:
    """Raises ConfigError for a file whose aliases stand for more values than anyone can read: a few lines can stand for
    billions."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        try:
            node = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue  # Hydra says it, where it reads the file
        if node is not None and _size(node, {}) > MOST_VALUES:
            raise ConfigError(f"{path} has more than {MOST_VALUES} values, its aliases (*NAME) written out; have less")


def check_first_lines(folders: Iterable[Path]) -> None:
    """A part copied with another's package line would measure under that one's name. Raises ConfigError."""
    for group in ("variant", "kernel", "inputs"):
        for path in (path for folder in folders for path in sorted((folder / group).glob("*.yaml"))):
            line = f"# @package {group}.{path.stem}"
            if line not in (given.strip() for given in path.read_text().splitlines()):
                raise ConfigError(f"{path}: its first line must be {line!r}, so that it is recorded under its own name")


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node stands for; infinitely many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        known[id(node)] = 1 + sum(_size(child, known) for child in _children(node))
    return known[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
