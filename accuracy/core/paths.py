"""Where the configurations and experiments lie, beside the package or in a wheel; files written whole or not at all."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PACKAGE = Path(__file__).parents[1]


_ABOVE = PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parent
CONFIGS, EXPERIMENTS = _ABOVE / "configs", _ABOVE / "experiments"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A handle whose content becomes `path`, on disk for good, when the body ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(hidden, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(hidden, path)
    except OSError as error:  # of a write, which does not say where
        hidden.unlink(missing_ok=True)
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
