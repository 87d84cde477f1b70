"""Where the configurations and experiments lie, beside the package or in a wheel; files written whole or not at all."""

import os
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
