"""Hydra composes a command's configuration once, not twice."""

from collections.abc import Iterator
from contextlib import contextmanager

from hydra._internal.hydra import Hydra


@contextmanager
def composed_once(arguments: list[str]) -> Iterator[None]:
    """Hydra composes the configuration a first time to look for `hydra.mode` in it. Only a user's own can have it."""
    asked = any(word.startswith(("hydra.mode", "-cd", "-cp", "-cn", "--config")) for word in arguments)
    before = Hydra.get_mode
    if not asked:
        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]  # as where nothing is said
    try:
        yield
    finally:
        Hydra.get_mode = before  # type: ignore[method-assign]
