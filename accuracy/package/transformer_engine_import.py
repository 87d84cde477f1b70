"""TransformerEngine's Python modules, whole where its C++ extension is installed, else around stand-ins.

The wheel `transformer_engine` alone holds Python only: `transformer_engine_torch`, which the context parallelism of
16-bit bshd tensors over flash-attn never calls, is a mock then, and package modules take the place of `__init__`s that
would load it. Neither is left in `sys.modules`: nobody else meets a stand-in.
"""

import enum
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from accuracy.package import replaced

PACKAGE, EXTENSION = "transformer_engine", "transformer_engine_torch"
ATTENTION = f"{PACKAGE}.pytorch.attention.dot_product_attention"
CONTEXT_PARALLEL, BACKENDS = f"{ATTENTION}.context_parallel", f"{ATTENTION}.backends"
WITHOUT_INIT = (f"{PACKAGE}.pytorch", f"{PACKAGE}.pytorch.attention", ATTENTION)
BEFORE = (f"{PACKAGE}.pytorch.tensor", f"{PACKAGE}.pytorch.module")  # else they import each other in a circle
UNUSED = f"{PACKAGE}.pytorch.onnx_extensions"  # needs onnx and onnxscript, which nobody asks for here
DTYPES = {
    "kByte": 0, "kInt32": 1, "kFloat32": 2, "kFloat16": 3, "kBFloat16": 4, "kFloat8E4M3": 5, "kFloat8E5M2": 6,
    "kFloat4E2M1": 7,
}  # fmt: skip
FUSED = {"NVTE_No_Backend": 0, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
CUDNN = (9, 19, 0)  # what a stand-in answers: nothing here calls cuDNN


def is_whole() -> bool:
    """Whether the C++ extension is installed, asked without importing it."""
    try:
        importlib.metadata.version(EXTENSION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@cache
def modules() -> dict[str, ModuleType]:
    """Every module of the package that its context parallelism needs, by name; in `sys.modules` if it is whole."""
    if is_whole():
        importlib.import_module(CONTEXT_PARALLEL)
        importlib.import_module(BACKENDS)
        return {}
    stand_ins = {EXTENSION: _extension(), UNUSED: _Mock(UNUSED)}
    with replaced.modules(stand_ins), _no_sanity_check(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the extension is missing
        try:
            importlib.import_module(PACKAGE)
            for name in WITHOUT_INIT:
                _without_init(name)
            for name in (*BEFORE, CONTEXT_PARALLEL, BACKENDS):
                importlib.import_module(name)
            vars(sys.modules[CONTEXT_PARALLEL])["get_cudnn_version"] = lambda: CUDNN
        finally:
            found = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    return found


@contextmanager
def in_place() -> Iterator[tuple[Any, Any]]:
    """Inside, the package can be imported: its modules `context_parallel` and `backends`."""
    with replaced.modules(modules()):
        yield sys.modules[CONTEXT_PARALLEL], sys.modules[BACKENDS]


def _is_ours(name: str) -> bool:
    return name in (PACKAGE, EXTENSION) or name.startswith(f"{PACKAGE}.")


class _Mock(ModuleType):
    """A module with any name in it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=name)
        setattr(self, name, value)
        return value


def _extension() -> ModuleType:
    module = _Mock(EXTENSION, "in the place of TransformerEngine's C++ extension")
    module.__spec__ = ModuleSpec(EXTENSION, None)
    vars(module)["DType"] = enum.IntEnum("DType", DTYPES)
    vars(module)["NVTE_Fused_Attn_Backend"] = enum.IntEnum("NVTE_Fused_Attn_Backend", FUSED)
    return module


def _without_init(name: str) -> None:
    """A package whose modules can be imported while its own `__init__` has not run."""
    parent, _, leaf = name.rpartition(".")
    module = ModuleType(name)
    module.__path__ = [os.path.join(path, leaf) for path in sys.modules[parent].__path__]
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    setattr(sys.modules[parent], leaf, module)


@contextmanager
def _no_sanity_check() -> Iterator[None]:
    """The package refuses to be imported without its libraries unless it is being built."""
    before = os.environ.get("NVTE_PROJECT_BUILDING")
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["NVTE_PROJECT_BUILDING"]
        else:
            os.environ["NVTE_PROJECT_BUILDING"] = before
