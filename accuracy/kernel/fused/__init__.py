"""CUDA kernels in Triton for what torch does in several passes over memory: the same roundings, in one."""

import importlib
from functools import cache
from types import ModuleType


@cache
def kernel(name: str) -> ModuleType | None:
    """A kernel of this folder, or None where there is no triton."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ImportError:
        return None
