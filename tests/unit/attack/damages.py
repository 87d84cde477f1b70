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
OTHERS = [b"", b"null", b"[]", b"{}", b"[" * 5000, b"9" * 400, b"NaN", b"\x00" * 64, b'"x"', b"PAR1PAR1", b"\xff\xfe"]


def bits(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def some_bytes(content: bytes, draw: random.Random) -> bytes:
    place, number = draw.randrange(len(content)), draw.choice([1, 4, 64])
    return content[:place] + draw.randbytes(number) + content[place + number :]


def _holders(node: Any, depth: int = 0) -> Iterator[tuple[int, Any, Any]]:
    """Of every value of a document: its depth, what holds it, and its key there."""
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield depth, node, key
        yield from _holders(node[key], depth + 1)


def shape(content: bytes, draw: random.Random) -> bytes:
    """One value of a JSON document, or of its last line, becomes something else, or its key goes."""
    before, _, line = content.rstrip(b"\n").rpartition(b"\n") if not content.startswith(b"{\n") else (b"", b"", content)
    node = json.loads(line)
    found = list(_holders(node))
    depth = draw.choice(sorted({each[0] for each in found}))
    _, parent, key = draw.choice([each for each in found if each[0] == depth])
    if draw.random() < 0.2:
        del parent[key]
    else:
        parent[key] = draw.choice(SHAPES)
    return before + (b"\n" if before else b"") + json.dumps(node).encode() + b"\n"


WAYS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "bits": bits, "bytes": some_bytes,
    "other": lambda content, draw: draw.choice([*OTHERS, draw.randbytes(draw.randrange(200))]),
    "shape": shape,
}  # fmt: skip


def damage(path: Path, draw: random.Random) -> str:
    """The way that was drawn."""
    names = (
        [*WAYS, *["shape"] * 3] if path.suffix in (".json", ".jsonl") else [name for name in WAYS if name != "shape"]
    )
    way = draw.choice(names)
    path.write_bytes(WAYS[way](path.read_bytes(), draw))
    return way
