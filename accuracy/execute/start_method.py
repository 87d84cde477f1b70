"""Starting a process settles for all of Python how processes are started, unless that is taken back."""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept() -> Iterator[None]:
    """A body that starts processes in a way of its own; the caller may still choose his afterwards."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if before is None:
            multiprocessing.set_start_method(None, force=True)


@contextmanager
def main_is_not_imported() -> Iterator[None]:
    """multiprocessing imports the main module in each child: a script without a guard would start itself again."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: names.pop(name) for name in ("__spec__", "__file__") if name in names}
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(hidden)
