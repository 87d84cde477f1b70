"""NVIDIA/TransformerEngine 2.20.2: its context parallelism (p2p, all_gather, a2a, a2a+p2p) over flash-attn.

Its own `context_parallel.py`, with bshd tensors in zigzag shards; no lse. With kernel=flash_attn its calls go to
flash-attn, with any other kernel to that kernel (`flash_attn_stand_in`). The wheel `transformer_engine` alone holds
Python only: without the C++ extension `transformer_engine_torch`, which this path never calls, a mock stands for it (in
run.json its version is null), and package modules for `__init__`s that would load it; neither is left in `sys.modules`:
nobody else meets a stand-in. On CUDA its merge is compiled, as published (NVTE_TORCH_COMPILE=0: as written), on
CPUs as written: the compiled one rounds out once a hop, the other twice.
"""

import enum
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import flash_attn_stand_in, installed, substitutes
from accuracy.variant.base import Rank
from accuracy.world.processes import variable

DISTRIBUTION = PACKAGE = "transformer_engine"
EXTENSION = "transformer_engine_torch"
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
A2A_DEGREE = 2  # of a2a+p2p: neighbours that exchange heads
HOPPER = SimpleNamespace(major=9, minor=0)  # what a CPU is taken for: it decides how two ranks send
LOW_LEVEL = ("_flash_attn_forward", "_flash_attn_backward")
CALLED = ("_flash_attn_fwd", "_flash_attn_bwd")  # their names in the package
VERSIONS = ("is_installed", "v2_3_plus", "v2_4_plus", "v2_4_1_plus", "v2_5_7_plus", "v2_6_0_plus", "v2_7_0_plus")


def unsupported(case: Case) -> str | None:
    """Not installed; one rank; heads that cannot be exchanged."""
    if reason := installed.unsupported_case(DISTRIBUTION, case):
        return reason
    name, size = installed.called(case), case.world_size
    if size == 1:
        return f"{DISTRIBUTION}'s context parallelism begins at 2 ranks; use world_size=2 or more"
    if name == "a2a_p2p" and (size % A2A_DEGREE or size == A2A_DEGREE):
        return f"a2a+p2p has rings of {A2A_DEGREE} neighbours: world_size={size} must be a larger multiple of it"
    shared = {"a2a": size, "a2a_p2p": A2A_DEGREE}.get(name, 1)
    return installed.unshared(case, shared)


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """The package's calls of flash-attn go to the kernel of the case; on a CPU it meets no CUDA."""
    with substitutes.of(rank) as kernel, in_place() as (module, backends), ExitStack() as stack:
        if not substitutes.is_flash_attn(kernel):
            interface = flash_attn_stand_in.interface(kernel)
            ours = {theirs: getattr(interface, name) for theirs, name in zip(CALLED, LOW_LEVEL, strict=True)}
            stack.enter_context(substitutes.names(backends, **ours))
            stack.enter_context(substitutes.names(module.fa_utils, **dict.fromkeys(VERSIONS, True)))
        if not torch.cuda.is_available():
            stack.enter_context(_without_cuda(module))
        yield


@contextmanager
def _without_cuda(module: Any) -> Iterator[None]:
    """Streams and events that do nothing, and functions as written, uncompiled."""
    written = {name: it.__wrapped__ for name, it in vars(module).items() if hasattr(it, "__wrapped__")}
    nothing = {"current_stream": _Stream, "Stream": _Stream, "Event": _Stream, "stream": nullcontext}
    device = {"current_device": lambda: torch.device("cpu"), "get_device_properties": lambda index: HOPPER}
    communicate = module.flash_attn_p2p_communicate
    written["flash_attn_p2p_communicate"] = lambda *given: [_Once(work) for work in communicate(*given)]
    with substitutes.names(module, **written), substitutes.names(torch.cuda, **nothing, **device):
        yield


@dataclass
class _Once:
    """Work that is waited for once: its backward waits for each transfer twice, and gloo would wait for another."""

    work: dist.Work
    done: bool = False

    def wait(self) -> None:
        """At most once."""
        if not self.done:
            self.work.wait()
        self.done = True


_Stream = partial(SimpleNamespace, **dict.fromkeys(("wait_stream", "wait_event", "record_event"), lambda other: None))


@cache
def modules() -> dict[str, ModuleType]:
    """Every module of the package that its context parallelism needs, by name; in `sys.modules` if it is whole."""
    if installed.unsupported(EXTENSION) is None:
        importlib.import_module(CONTEXT_PARALLEL)
        importlib.import_module(BACKENDS)
        return {}
    stand_ins = {EXTENSION: _extension(), UNUSED: _Mock(UNUSED)}
    building = variable("NVTE_PROJECT_BUILDING", "1")  # without its libraries it refuses to be imported otherwise
    with substitutes.modules(stand_ins), building, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the extension is missing
        try:
            importlib.import_module(PACKAGE)
            for name in WITHOUT_INIT:
                _without_init(name)
            for name in (*BEFORE, CONTEXT_PARALLEL, BACKENDS):
                importlib.import_module(name)
            vars(sys.modules[CONTEXT_PARALLEL])["get_cudnn_version"] = lambda: CUDNN
        finally:
            ours = [each for each in sys.modules if each == EXTENSION or each.partition(".")[0] == PACKAGE]
            found = {name: sys.modules.pop(name) for name in ours}
    return found


def load() -> bool:
    """Import the package, which replaces methods of torch.nn.Module; return whether it was not imported before."""
    new = not modules.cache_info().currsize
    modules()
    return new


@contextmanager
def in_place() -> Iterator[tuple[Any, Any]]:
    """Inside, the package can be imported: its modules `context_parallel` and `backends`."""
    with substitutes.modules(modules()):
        yield sys.modules[CONTEXT_PARALLEL], sys.modules[BACKENDS]


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


def _attend(
    way: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`attn_forward_func_with_cp`: q (B, S/W, H, D), k, v (B, S/W, Hk, D), zigzag shards -> out."""
    length = q.shape[1] * dist.get_world_size(group)
    borders = torch.arange(0, (len(q) + 1) * length, length, dtype=torch.int32, device=q.device)
    ranks = list(substitutes.rows_and_columns(group, A2A_DEGREE)) if way == "a2a+p2p" else group
    out: Tensor = importlib.import_module(CONTEXT_PARALLEL).attn_forward_func_with_cp(
        True, q, k, v, borders, borders, length, length, None, None, 0.0, ranks, dist.get_process_group_ranks(group),
        torch.cuda.Stream(), way, softmax_scale=softmax_scale, qkv_format="bshd",
        attn_mask_type="causal" if causal else "no_mask", window_size=(-1, 0 if causal else -1),
        deterministic=substitutes.deterministic(), use_fused_attention=False,
    )  # fmt: skip
    return out.view(*q.shape[:3], v.shape[3])


p2p, all_gather, a2a = partial(_attend, "p2p"), partial(_attend, "all_gather"), partial(_attend, "a2a")
a2a_p2p = partial(_attend, "a2a+p2p")
