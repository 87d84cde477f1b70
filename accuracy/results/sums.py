"""Are a baseline's files the ones that were published? SHA256SUMS as `sha256sum` writes and checks it.

It guards against damage, not against malice: who can write a baseline can write its sums. What else a file says is
therefore checked too (`accuracy/gate/files.py`), and a new baseline is reviewed like code.
"""

import hashlib
from pathlib import Path

NAME = "SHA256SUMS"
FILES = ("results.parquet", "run.json")  # what the gate reads
POSITIONS = "positions.parquet"  # what the report draws; earlier versions did not sign it


def signed(folder: Path) -> list[str]:
    """The names of the folder's files that have a line."""
    return [*FILES, *([POSITIONS] if (folder / POSITIONS).exists() else [])]


def text_of(contents: dict[str, bytes]) -> str:
    """The whole file, by which it is compared: anything else in it is damage."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())


def write(folder: Path) -> None:
    """Write SHA256SUMS for the folder's tables."""
    contents = {name: (folder / name).read_bytes() for name in signed(folder)}
    (folder / NAME).write_text(text_of(contents), encoding="ascii")


def hold(folder: Path, contents: dict[str, bytes]) -> bool:
    """Whether the contents are those that the folder's SHA256SUMS names; an earlier version's names no positions."""
    earlier = {name: contents[name] for name in FILES}
    return (folder / NAME).read_bytes() in (text_of(contents).encode(), text_of(earlier).encode())
