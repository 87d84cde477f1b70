"""Starting a process settles for all of Python how processes are started, unless that is taken back."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """A body that starts processes in a way of its own; the caller may still choose his afterwards."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if before is None:
            multiprocessing.set_start_method(None, force=True)
