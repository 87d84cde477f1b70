"""zhuzilin/ring-flash-attention 0.1.8: ring, zigzag, stripe, llama3, and llama3 forward with ring backward.

With kernel=flash_attn its calls go to flash-attn, with any other kernel to that kernel (`flash_attn_stand_in`). Its
llama3 takes packed sequences cut into contiguous shards of the whole: a batch is one call a sequence, as its shards are
contiguous in each sequence. Its functions state no lse dtype of their own: natural log, (B, H, S/W).
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.package import case_kernel, flash_attn_stand_in, installed, replaced
from accuracy.variant.base import Rank

DISTRIBUTION = "ring-flash-attn"
BATCHED = ("ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn")
PACKED = "llama3_flash_attn_varlen"
HEADS_STRIDE = 1  # key/value heads that llama3 gathers at a time, as our variant's default
NO_ADAPTERS = ("substitute_hf_flash_attn", "update_ring_flash_attn_params")

Result = tuple[Tensor, Tensor]


def unsupported(case: Case) -> str | None:
    """Not installed; float64; a full mask in zigzag and stripe; one rank on gloo in what ends with a ring backward."""
    if missing := installed.unsupported(DISTRIBUTION):
        return missing
    name = str(dict(case.variant.options)["fn"]).rpartition(".")[2]
    if case.dtype == "float64":
        return f"{DISTRIBUTION} keeps its sums in float32; use dtype=float32 or a 16-bit one"
    if not case.problem.causal and name in ("zigzag", "stripe"):
        return f"{DISTRIBUTION}'s {name} computes causal masks only; set problem.mask=causal"
    if case.world_size == 1 and case.device == "cpu" and name != "llama3":
        return f"{DISTRIBUTION}'s {name} sends to its own rank at world_size 1, which gloo cannot; use 2 or more ranks"
    return None


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """The package's calls of flash-attn go to the kernel of the case."""
    with case_kernel.of(rank) as kernel, ExitStack() as stack:
        package = _package(kernel)
        if not case_kernel.is_flash_attn(kernel):
            for module in (getattr(package, name) for name in (*BATCHED, PACKED)):
                functions = flash_attn_stand_in.low_level(kernel, module)
                stack.enter_context(replaced.names(module, **functions))
        yield


def _package(kernel: Kernel) -> ModuleType:
    return _imported() if case_kernel.is_flash_attn(kernel) else _imported_without_flash_attn(kernel)


@cache
def _imported() -> ModuleType:
    """The package without its adapter for transformers, which is not measured and fails with transformers 5."""
    adapters = ModuleType("ring_flash_attn.adapters")
    vars(adapters).update(dict.fromkeys(NO_ADAPTERS))
    with replaced.modules({adapters.__name__: adapters}):
        return importlib.import_module("ring_flash_attn")


def _imported_without_flash_attn(kernel: Kernel) -> ModuleType:
    """Where flash-attn is missing, its names are there for the time of the import."""
    try:
        importlib.import_module("flash_attn.flash_attn_interface")
    except ImportError:
        with replaced.modules(flash_attn_stand_in.modules(kernel)):
            return _imported()
    return _imported()


def ring(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Result:
    """`ring_flash_attn_func`: contiguous shards."""
    return _batched("ring_flash_attn_func", q, k, v, causal, softmax_scale, group)


def zigzag(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Result:
    """`zigzag_ring_flash_attn_func`: zigzag shards, causal."""
    return _batched("zigzag_ring_flash_attn_func", q, k, v, causal, softmax_scale, group)


def stripe(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Result:
    """`stripe_flash_attn_func`: striped shards, causal."""
    return _batched("stripe_flash_attn_func", q, k, v, causal, softmax_scale, group)


def _batched(
    name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, group: dist.ProcessGroup
) -> Result:
    out, lse, _ = getattr(_imported(), name)(
        q, k, v, softmax_scale=scale, causal=causal, return_attn_probs=True, group=group,
        deterministic=case_kernel.deterministic(),
    )  # fmt: skip
    return out, lse


def llama3(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Result:
    """`llama3_flash_attn_varlen_func`: contiguous shards, one call a sequence of the batch."""
    function = _imported().llama3_flash_attn_varlen_func
    borders = _borders(q, causal, group)
    found = []
    for sequence in zip(q, k, v, strict=True):
        out, lse, _ = function(
            *sequence, **borders, softmax_scale=softmax_scale, causal=causal, return_attn_probs=True, group=group,
            deterministic=case_kernel.deterministic(),
        )  # fmt: skip
        found.append((out, lse))
    outs, lses = zip(*found, strict=True)
    return torch.stack(outs), torch.stack(lses)


def _borders(q: Tensor, causal: bool, group: dist.ProcessGroup) -> dict[str, Any]:
    """One sequence over all ranks, in the words of the package."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = torch.tensor([0, q.shape[1] * size], dtype=torch.int32, device=q.device)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
    prepared = _imported().llama3_flash_attn_prepare_cu_seqlens(whole, causal, rank, size)
    return {**dict(zip(names, prepared, strict=True)), "heads_k_stride": HEADS_STRIDE}


def llama3_ring(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """`llama3_flash_attn_varlen_forward` and `ring_flash_attn_backward`: the remedy that its issue #42 names."""
    how = {"softmax_scale": softmax_scale, "causal": causal}
    out, lse = _Llama3Ring.apply(q, k, v, how, group, case_kernel.deterministic())
    return out, lse


class _Llama3Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], group: dist.ProcessGroup, deterministic: bool
    ) -> Result:
        function = _imported().llama3_flash_attn_varlen.llama3_flash_attn_varlen_forward
        borders = _borders(q, how["causal"], group)
        found = [function(group, *sequence, **borders, **how) for sequence in zip(q, k, v, strict=True)]
        out, lse = (torch.stack(same) for same in zip(*found, strict=True))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how, ctx.group = {**how, "deterministic": deterministic}, group
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        function = _imported().ring_flash_attn.ring_flash_attn_backward
        return *function(ctx.group, gradients[0], *ctx.saved_tensors, **ctx.how), None, None, None
