"""Ways to damage a file, drawn from a seed: cut off, bits, bytes, other content, and JSON of another shape."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHAPES: list[Any] = [
    None, [], {}, [[]], "", "x", True, 0, -1, 2.5, 10**400, float("nan"), "\x1b[31m\n\x00", ["a", 1, None],
    {"a": {"b": [1]}}, "x" * 5000, "../..", [[[[]]]] * 3, "\ud800",
]  # fmt: skip


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def bits(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def some_bytes(content: bytes, draw: random.Random) -> bytes:
    place, number = draw.randrange(len(content)), draw.choice([1, 4, 64])
    return content[:place] + draw.randbytes(number) + content[place + number :]


def other(content: bytes, draw: random.Random) -> bytes:
    whole = [
        b"", b"null", b"[]", b"{}", b"[" * 5000, b"9" * 400, b"NaN", b"\x00" * 64, b'"x"', b"PAR1PAR1", b"\xff\xfe",
    ]  # fmt: skip
    return draw.choice([*whole, draw.randbytes(draw.randrange(200))])


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield (*path, key)
        yield from _places(node[key], (*path, key))


def shape(content: bytes, draw: random.Random) -> bytes:
    """One value of a JSON document, or of its last line, becomes something else, or its key goes."""
    before, _, line = content.rstrip(b"\n").rpartition(b"\n") if not content.startswith(b"{\n") else (b"", b"", content)
    node = json.loads(line)
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for place in _places(node):
        by_depth.setdefault(len(place), []).append(place)
    *way, key = draw.choice(by_depth[draw.choice(sorted(by_depth))])
    parent = node
    for each in way:
        parent = parent[each]
    if draw.random() < 0.2:
        del parent[key]
    else:
        parent[key] = draw.choice(SHAPES)
    return before + (b"\n" if before else b"") + json.dumps(node).encode() + b"\n"


WAYS: list[Callable[[bytes, random.Random], bytes]] = [cut, bits, some_bytes, other]


def damage(path: Path, draw: random.Random) -> str:
    """The way that was drawn."""
    content = path.read_bytes()
    ways = [*WAYS, shape, shape, shape, shape] if path.suffix in (".json", ".jsonl") else WAYS
    way = draw.choice(ways)
    path.write_bytes(way(content, draw))
    return way.__name__
