"""zhuzilin/ring-flash-attention 0.1.8: ring, zigzag, stripe, llama3, and llama3 forward with ring backward.

With kernel=flash_attn its calls go to flash-attn, with any other kernel to that kernel (`flash_attn_stand_in`). Its
llama3 takes packed sequences: a batch is one call a sequence.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.package import flash_attn_stand_in, installed, substitutes
from accuracy.variant.base import Rank

DISTRIBUTION = "ring-flash-attn"
PACKAGE = "ring_flash_attn"
CALL_FLASH_ATTN = (
    "ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn", "llama3_flash_attn_varlen",
    "ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen",
)  # fmt: skip
FEATURES = {"llama3": ("documents",)}
HEADS_STRIDE = 1  # key/value heads that llama3 gathers at a time, as our variant's default
NO_ADAPTERS = ("substitute_hf_flash_attn", "update_ring_flash_attn_params")

Result = tuple[Tensor, Tensor]


def unsupported(case: Case) -> str | None:
    """Not installed; float64; a full mask in zigzag and stripe; one rank on gloo in what ends with a ring backward."""
    balanced, rings = ("zigzag", "stripe"), ("ring", "zigzag", "stripe", "llama3_ring")
    return installed.unsupported_case(DISTRIBUTION, case, float64=False, causal_only=balanced, to_itself=rings)


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """The package's calls of flash-attn go to the kernel of the case."""
    with substitutes.of(rank) as kernel, ExitStack() as stack:
        package = _imported(kernel)
        for name in () if substitutes.is_flash_attn(kernel) else CALL_FLASH_ATTN:
            module = getattr(package, name)
            stack.enter_context(substitutes.names(module, **flash_attn_stand_in.low_level(kernel, module)))
        yield


def _imported(kernel: Kernel) -> ModuleType:
    """The package without its adapter for transformers, which is not measured and fails with transformers 5. Where
    flash-attn is missing, its names are there for the time of the import."""
    adapters = ModuleType(f"{PACKAGE}.adapters")
    vars(adapters).update(dict.fromkeys(NO_ADAPTERS))
    stand_ins = {adapters.__name__: adapters}
    try:
        importlib.import_module("flash_attn.flash_attn_interface")
    except ImportError:
        stand_ins |= flash_attn_stand_in.modules(kernel)
    with substitutes.modules(stand_ins):
        return importlib.import_module(PACKAGE)


ring = partial(substitutes.ring, PACKAGE, "ring_flash_attn_func")  # contiguous shards
zigzag = partial(substitutes.ring, PACKAGE, "zigzag_ring_flash_attn_func")  # zigzag shards, causal
stripe = partial(substitutes.ring, PACKAGE, "stripe_flash_attn_func")  # striped shards, causal


def llama3(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Result:
    """`llama3_flash_attn_varlen_func`: contiguous shards, one call a sequence of the batch, with its documents."""
    how = _borders(q, causal, group) | {"softmax_scale": softmax_scale, "causal": causal, "group": group}
    how |= {"return_attn_probs": True, "deterministic": substitutes.deterministic()}
    function = importlib.import_module(PACKAGE).llama3_flash_attn_varlen_func
    return stacked([function(*sequence, **how)[:2] for sequence in zip(q, k, v, strict=True)])


def stacked(found: list[Result]) -> Result:
    """out and lse of a batch from those of its sequences."""
    out, lse = (torch.stack(same) for same in zip(*found, strict=True))
    return out, lse


def _borders(q: Tensor, causal: bool, group: dist.ProcessGroup) -> dict[str, Any]:
    """One sequence over all ranks and its documents, in the words of the package."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    borders = substitutes.documents() or (0, q.shape[1] * size)
    whole = torch.tensor(borders, dtype=torch.int32, device=q.device)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
    prepared = importlib.import_module(PACKAGE).llama3_flash_attn_prepare_cu_seqlens(whole, causal, rank, size)
    return {**dict(zip(names, prepared, strict=True)), "heads_k_stride": HEADS_STRIDE}


def llama3_ring(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Result:
    """`llama3_flash_attn_varlen_forward` and `ring_flash_attn_backward`: the remedy that its issue #42 names."""
    how = {"softmax_scale": softmax_scale, "causal": causal}
    out, lse = _Llama3Ring.apply(q, k, v, how, group, substitutes.deterministic())
    return out, lse


class _Llama3Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], group: dist.ProcessGroup, deterministic: bool
    ) -> Result:
        function = importlib.import_module(PACKAGE).llama3_flash_attn_varlen.llama3_flash_attn_varlen_forward
        borders = _borders(q, how["causal"], group)
        out, lse = stacked([function(group, *sequence, **borders, **how) for sequence in zip(q, k, v, strict=True)])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how, ctx.group = {**how, "deterministic": deterministic}, group
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        function = importlib.import_module(PACKAGE).ring_flash_attn.ring_flash_attn_backward
        return *function(ctx.group, gradients[0], *ctx.saved_tensors, **ctx.how), None, None, None
