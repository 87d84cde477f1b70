"""Where the configurations and experiments lie, beside the package or in a wheel; where the project is public, and what
the links of its Markdown become elsewhere; files written whole or not at all.

The build reads this file, so that it needs the standard library alone.
"""

import ctypes
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PACKAGE = Path(__file__).parents[1]


_ABOVE = PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parent
CONFIGS, EXPERIMENTS = _ABOVE / "configs", _ABOVE / "experiments"


TRIES = 5
"""To write a file into a folder that another process removes at the same time."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A handle whose content becomes `path`, on disk for good, when the body ends without an error. Where another
    process removes the folder meanwhile, as a function that is measured may, it is made anew, up to `TRIES` times."""
    content = io.BytesIO()
    yield content
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    for tried in range(1, TRIES + 1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(hidden, "wb") as handle:
                handle.write(content.getbuffer())
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(hidden, path)
            return
        except OSError as error:  # of a write, which does not say where
            hidden.unlink(missing_ok=True)
            if tried == TRIES or not isinstance(error, FileNotFoundError):
                raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `path`, all at once, when the body ends without an error; a kill at any
    moment leaves `path` as it was, or as it becomes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.mkdir()
    try:
        yield hidden
        if path.exists():
            _exchange(hidden, path)
        else:
            hidden.rename(path)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    """Each takes the other's name at once; where the system cannot do so, one after the other."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is None or function(here, os.fsencode(one), here, os.fsencode(other), exchange) != 0:
        aside = other.with_name(f"{one.name}.before")
        other.rename(aside)
        one.rename(other)
        aside.rename(one)


ADDRESS = ""
"""Of the public repository, as https://github.com/OWNER/attention-accuracy: messages, report pages and the wheel's
description link to it. Empty: there is none, and nothing links to it."""
_CODE = r"```.*?```|`[^`\n]*`"
_LINK = re.compile(rf"{_CODE}|(!?)\[([^\[\]]*)\](?:\(([^()\s]+)\)|\[([^\[\]]*)\])?", re.DOTALL)
_DEFINITION = re.compile(r"^\[([^\[\]]+)\]: *(\S+)[^\n]*\n?", re.MULTILINE)


def address_of(path: str) -> str:
    """Return the address of a file or folder in the public repository; empty where none is set."""
    return f"{ADDRESS}/blob/main/{path}" if ADDRESS else ""


def relinked(markdown: str, address: Callable[[str, bool], str]) -> str:
    """The text with every link at its place, none defined elsewhere. address: of a link's target, and whether it is a
    picture's; empty: the link becomes its words, and a picture is left out."""
    targets = dict(_DEFINITION.findall(markdown))

    def changed(found: re.Match[str]) -> str:
        mark, words, target, name = found.groups()
        target = target or targets.get(name or words or "")
        if not target:  # code, or no link
            return found[0]
        there = address(target, bool(mark))
        return f"{mark}[{words}]({there})" if there else "" if mark else words

    return _LINK.sub(changed, _DEFINITION.sub("", markdown))


def is_absolute(target: str) -> bool:
    """Return whether a link's target is a whole address, with a scheme."""
    return re.match(r"[a-z][a-z+.-]*:", target) is not None
