"""Names in other modules, replaced for a while: a package gets the case's kernel or group without being edited."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NOTHING = object()


@contextmanager
def names(module: Any, **values: Any) -> Iterator[None]:
    """Attributes of a module, as given inside and as they were (or were not) afterwards."""
    before = {name: getattr(module, name, _NOTHING) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _NOTHING:
                delattr(module, name)
            else:
                setattr(module, name, value)


@contextmanager
def modules(stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """What `import` finds under these names, for the time of an import only: nobody else meets a stand-in."""
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
