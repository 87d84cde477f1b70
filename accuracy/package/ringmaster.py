"""axolotl-ringmaster 0.2.7: its peer-to-peer ring, all-gather ring, zigzag and DistFlashAttention schedules; no lse.

With kernel=flash_attn blocks are flash-attn's; with kernel=eager its own float32 products, which its zigzag has for
packed sequences only: the sequence is given as one such. q, k, v are (B, H, S, D), out is (B, S, H, D).
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
from accuracy.kernel.block import heads
from accuracy.package import installed, substitutes
from accuracy.variant.base import Rank

DISTRIBUTION = "axolotl-ringmaster"
KERNELS = ("eager", "flash_attn")
BALANCED = ("zigzag", "distflash")  # causal only; they send to themselves at one rank, where the others have no ring


def unsupported(case: Case) -> str | None:
    """Not installed; full masks; one rank on gloo; kernels that it does not know."""
    reason = installed.unsupported_case(DISTRIBUTION, case, causal_only=BALANCED, to_itself=BALANCED)
    if reason is None and case.kernel.name not in KERNELS:
        return f"{DISTRIBUTION} has blocks of flash-attn and torch products of its own; use kernel={KERNELS[0]}"
    return reason


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """flash-attn's functions straight from flash-attn, where it asks transformers for them; none without it."""
    with substitutes.of(rank) as kernel, ExitStack() as stack:
        real = importlib.import_module("flash_attn.flash_attn_interface") if substitutes.is_flash_attn(kernel) else None
        low_level = (real._flash_attn_forward, real._flash_attn_backward) if real else None
        for name in ("p2p_attn", "zigzag", "distflash"):
            module = importlib.import_module(f"ringmaster.ring.{name}")
            stack.enter_context(substitutes.names(module, _flash_ops=lambda *which: low_level))
        if real:
            blocks = importlib.import_module("ringmaster.ring.kernels")
            stack.enter_context(substitutes.names(blocks, _flash_fn=lambda which: real.flash_attn_func))
        yield


def _ring(
    rotation: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`ring_attention(rotate_method=...)`."""
    flash = substitutes.is_flash_attn(substitutes.present())
    method = importlib.import_module("ringmaster.config").RotateMethod[rotation]
    out: Tensor = importlib.import_module("ringmaster.ring").ring_attention(
        *heads.first(q, k, v), group=group, causal=causal, scaling=softmax_scale, dropout=0.0,
        provider="hf_kernels" if flash else "math", rotate_method=method,
        attn_implementation="flash_attention_2" if flash else "math",
    )  # fmt: skip
    return out


def _balanced(
    name: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """A causal schedule: the function `name` of the module that its first word names."""
    packed: dict[str, Any] = {}
    if not substitutes.is_flash_attn(substitutes.present()):
        packed["cu_seqlens"] = torch.tensor([0, q.shape[1] * dist.get_world_size(group)], device=q.device)
    function = getattr(importlib.import_module(f"ringmaster.ring.{name.partition('_')[0]}"), name)
    out: Tensor = function(*heads.first(q, k, v), group=group, scaling=softmax_scale, **packed)
    return out


ring, allgather = partial(_ring, "ALLTOALL"), partial(_ring, "ALLGATHER")  # contiguous shards
zigzag = partial(_balanced, "zigzag_ring_attention")  # zigzag shards
distflash = partial(_balanced, "distflash_attention")  # contiguous shards (Li et al. 2023, arXiv 2310.03294)
