"""axolotl-ringmaster 0.2.7: its peer-to-peer ring, all-gather ring, zigzag and DistFlashAttention schedules.

With kernel=flash_attn blocks are flash-attn's; with kernel=eager its own float32 products, which it has for CPUs (its
zigzag has them for packed sequences only: the sequence is given as one such). It takes q, k, v (B, H, S, D), returns
out (B, S, H, D) and no lse.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import case_kernel, installed, replaced
from accuracy.variant.base import Rank

DISTRIBUTION = "axolotl-ringmaster"
KERNELS = ("eager", "flash_attn")
CAUSAL_ONLY = ("zigzag", "distflash")
TO_ITSELF = ("zigzag", "distflash")  # at one rank; the others leave their ring out there


def unsupported(case: Case) -> str | None:
    """Not installed; kernels that it does not know; full masks; one rank on gloo."""
    if missing := installed.unsupported(DISTRIBUTION):
        return missing
    name = str(dict(case.variant.options)["fn"]).rpartition(".")[2]
    if case.kernel.name not in KERNELS:
        return f"{DISTRIBUTION} has blocks of flash-attn and torch products of its own; use kernel={KERNELS[0]}"
    if not case.problem.causal and name in CAUSAL_ONLY:
        return f"{DISTRIBUTION}'s {name} computes causal masks only; set problem.mask=causal"
    if case.world_size == 1 and case.device == "cpu" and name in TO_ITSELF:
        return f"{DISTRIBUTION}'s {name} sends to its own rank at world_size 1, which gloo cannot; use 2 or more ranks"
    return None


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """flash-attn's functions straight from flash-attn, where it asks transformers for them; none without it."""
    with case_kernel.of(rank) as kernel, ExitStack() as stack:
        real = importlib.import_module("flash_attn.flash_attn_interface") if case_kernel.is_flash_attn(kernel) else None
        low_level = (real._flash_attn_forward, real._flash_attn_backward) if real else None
        for name in ("p2p_attn", "zigzag", "distflash"):
            module = importlib.import_module(f"ringmaster.ring.{name}")
            stack.enter_context(replaced.names(module, _flash_ops=lambda *which: low_level))
        if real:
            blocks = importlib.import_module("ringmaster.ring.kernels")
            stack.enter_context(replaced.names(blocks, _flash_fn=lambda which: real.flash_attn_func))
        yield


def ring(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`ring_attention(rotate_method=ALLTOALL)`: contiguous shards."""
    return _ring(q, k, v, causal, softmax_scale, group, "ALLTOALL")


def allgather(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`ring_attention(rotate_method=ALLGATHER)`: contiguous shards."""
    return _ring(q, k, v, causal, softmax_scale, group, "ALLGATHER")


def _ring(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, group: dist.ProcessGroup, rotation: str
) -> Tensor:
    flash = case_kernel.is_flash_attn(case_kernel.present())
    method = importlib.import_module("ringmaster.config").RotateMethod[rotation]
    out: Tensor = importlib.import_module("ringmaster.ring").ring_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), group=group, causal=causal, scaling=scale, dropout=0.0,
        provider="hf_kernels" if flash else "math", rotate_method=method,
        attn_implementation="flash_attention_2" if flash else "math",
    )  # fmt: skip
    return out


def zigzag(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`zigzag_ring_attention`: zigzag shards, causal."""
    function = importlib.import_module("ringmaster.ring.zigzag").zigzag_ring_attention
    return _balanced(function, q, k, v, softmax_scale, group)


def distflash(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`distflash_attention` (Li et al. 2023, arXiv 2310.03294): contiguous shards, causal."""
    function = importlib.import_module("ringmaster.ring.distflash").distflash_attention
    return _balanced(function, q, k, v, softmax_scale, group)


def _balanced(function: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, group: dist.ProcessGroup) -> Tensor:
    tensors = (x.transpose(1, 2) for x in (q, k, v))
    attend = partial(function, *tensors, group=group, scaling=scale)
    if case_kernel.is_flash_attn(case_kernel.present()):
        out: Tensor = attend()
        return out
    whole = torch.tensor([0, q.shape[1] * dist.get_world_size(group)], device=q.device)
    out = attend(cu_seqlens=whole)
    return out
