"""NVIDIA/TransformerEngine 2.20.2: its context parallelism (p2p, all_gather, a2a, a2a+p2p) over flash-attn.

Its own `context_parallel.py`, with bshd tensors in zigzag shards; no lse. With kernel=flash_attn its calls go to
flash-attn, with any other kernel to that kernel (`flash_attn_stand_in`). Without its C++ extension, which this path
never calls, its Python side runs around stand-ins (`transformer_engine_import`; packages in run.json tell:
transformer_engine_torch is null). On CUDA its merge is compiled, as published (NVTE_TORCH_COMPILE=0: as written), on
CPUs as written: the compiled one rounds out once a hop, the other twice.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import case_kernel, flash_attn_stand_in, installed, replaced, subgroup
from accuracy.package import transformer_engine_import as its
from accuracy.variant.base import Rank

DISTRIBUTION = "transformer_engine"
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
    with case_kernel.of(rank) as kernel, its.in_place() as (module, backends), ExitStack() as stack:
        if not case_kernel.is_flash_attn(kernel):
            stack.enter_context(replaced.names(backends, **_stand_in(kernel)))
            stack.enter_context(replaced.names(module.fa_utils, **dict.fromkeys(VERSIONS, True)))
        if not torch.cuda.is_available():
            stack.enter_context(_without_cuda(module))
        yield


def _stand_in(kernel: Any) -> dict[str, Any]:
    interface = flash_attn_stand_in.interface(kernel)
    return {theirs: getattr(interface, name) for theirs, name in zip(CALLED, LOW_LEVEL, strict=True)}


@contextmanager
def _without_cuda(module: Any) -> Iterator[None]:
    """Streams and events that do nothing, and functions as written, uncompiled."""
    written = {name: it.__wrapped__ for name, it in vars(module).items() if hasattr(it, "__wrapped__")}
    nothing = {"current_stream": _Stream, "Stream": _Stream, "Event": _Stream, "stream": nullcontext}
    device = {"current_device": lambda: torch.device("cpu"), "get_device_properties": lambda index: HOPPER}
    communicate = module.flash_attn_p2p_communicate
    written["flash_attn_p2p_communicate"] = lambda *given: [_Once(work) for work in communicate(*given)]
    with replaced.names(module, **written), replaced.names(torch.cuda, **nothing, **device):
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


class _Stream:
    """A stream, or an event, of work that is done when it is asked for."""

    def wait_stream(self, other: "_Stream") -> None:
        """Nothing is under way."""

    def wait_event(self, event: "_Stream") -> None:
        """Nothing is under way."""

    def record_event(self, event: "_Stream") -> None:
        """Nothing is under way."""


def _attend(
    way: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`attn_forward_func_with_cp`: q (B, S/W, H, D), k, v (B, S/W, Hk, D), zigzag shards -> out."""
    length = q.shape[1] * dist.get_world_size(group)
    borders = torch.arange(0, (len(q) + 1) * length, length, dtype=torch.int32, device=q.device)
    groups = list(subgroup.rows_and_columns(group, A2A_DEGREE)) if way == "a2a+p2p" else group
    out: Tensor = importlib.import_module(its.CONTEXT_PARALLEL).attn_forward_func_with_cp(
        True, q, k, v, borders, borders, length, length, None, None, 0.0, groups, dist.get_process_group_ranks(group),
        torch.cuda.Stream(), way, softmax_scale=softmax_scale, qkv_format="bshd",
        attn_mask_type="causal" if causal else "no_mask", window_size=(-1, 0 if causal else -1),
        deterministic=case_kernel.deterministic(), use_fused_attention=False,
    )  # fmt: skip
    return out.view(*q.shape[:3], v.shape[3])


p2p, all_gather, a2a = partial(_attend, "p2p"), partial(_attend, "all_gather"), partial(_attend, "a2a")
a2a_p2p = partial(_attend, "a2a+p2p")
