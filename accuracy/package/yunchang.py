"""feifeibear/long-context-attention (yunchang) 0.6.4: its rings, ulysses, and both at once (USP).

With kernel=flash_attn its calls go to flash-attn, with any other kernel to that kernel (`flash_attn_stand_in`).
Ulysses and USP return no lse.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.package import flash_attn_stand_in, installed, substitutes
from accuracy.variant.base import Rank
from accuracy.world.documents import Exchange, by_document

DISTRIBUTION = PACKAGE = "yunchang"
ULYSSES_DEGREE = 2  # of the hybrid: the other factor of the world size is the ring's


def unsupported(case: Case) -> str | None:
    """Not installed; float64; masks, heads and ranks that a function cannot serve."""
    balanced = ("zigzag", "stripe", "hybrid")
    if reason := installed.unsupported_case(DISTRIBUTION, case, float64=False, causal_only=balanced):
        return reason
    name, size = installed.called(case), case.world_size
    if name == "hybrid" and size % ULYSSES_DEGREE:
        return f"the hybrid has {ULYSSES_DEGREE} ranks of ulysses in a row; use a multiple of them, not {size}"
    ring = {"ulysses": 0, "hybrid": size // ULYSSES_DEGREE}.get(name, size)
    if ring == 1 and case.device == "cpu":
        return f"{DISTRIBUTION}'s ring of one rank sends to itself, which gloo cannot; use more ranks"
    shared = {"ulysses": size, "hybrid": ULYSSES_DEGREE}.get(name, 1)
    return installed.unshared(case, shared)


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """The package's calls of flash-attn go to the kernel of the case."""
    with substitutes.of(rank) as kernel, nullcontext() if substitutes.is_flash_attn(kernel) else _stand_in(kernel):
        yield


@contextmanager
def _stand_in(kernel: Kernel) -> Iterator[None]:
    """It imports without flash-attn; what it would have imported is put where it looks for it."""
    package = flash_attn_stand_in.package(kernel)
    attention, kernels = (importlib.import_module(f"yunchang.kernels{name}") for name in (".attention", ""))
    names = {name: getattr(package.flash_attn_interface, name) for name in flash_attn_stand_in.LOW_LEVEL[:2]}
    with (
        substitutes.names(attention, HAS_FLASH_ATTN=True, flash_attn=package, **names),
        substitutes.names(kernels, HAS_FLASH_ATTN=True, flash_attn_func=package.flash_attn_func),
    ):
        yield


ring = partial(substitutes.ring, PACKAGE, "ring_flash_attn_func")  # contiguous shards
zigzag = partial(substitutes.ring, PACKAGE, "zigzag_ring_flash_attn_func")  # zigzag shards, causal
stripe = partial(substitutes.ring, PACKAGE, "stripe_flash_attn_func")  # striped shards, causal


def ulysses(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`UlyssesAttention`: contiguous shards, no lse."""
    attend = importlib.import_module(PACKAGE).UlyssesAttention(group)
    out: Tensor = attend(q, k, v, softmax_scale=softmax_scale, causal=causal, deterministic=substitutes.deterministic())
    return out


def hybrid(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`LongContextAttention`, ulysses inside of a zigzag ring: contiguous shards here, no lse. The package's chunks
    are in the ring's zigzag order (`zigzag_extract_local`): shards are exchanged for those, and out for ours."""
    size = dist.get_world_size(group)
    process_groups = importlib.import_module("yunchang.globals").PROCESS_GROUP
    process_groups.ULYSSES_PG, process_groups.RING_PG = substitutes.rows_and_columns(group, ULYSSES_DEGREE)
    ours = by_document([q.shape[1] * size], "contiguous", size)
    places = range(size // ULYSSES_DEGREE)  # of each pair of ranks, the ring's front chunk and the mirrored back one
    theirs = [ours[chunk] for place in places for chunk in (place, size - 1 - place)]
    attention = importlib.import_module(PACKAGE).LongContextAttention(ring_impl_type="zigzag")
    out: Tensor = attention(
        *(Exchange.apply(x, ours, theirs, group) for x in (q, k, v)),
        softmax_scale=softmax_scale, causal=causal, deterministic=substitutes.deterministic(),
    )  # fmt: skip
    exchanged: Tensor = Exchange.apply(out, theirs, ours, group)
    return exchanged
