"""lucidrains/ring-attention-pytorch 0.5.20: ring and striped ring, in its own torch products or its Triton kernel.

It knows no groups: within `surroundings` its rank, its world size and its transfers are those of the case. It computes
blocks itself, so the case's kernel serves single device alone. No lse comes back. Query heads that share a
key/value head lie apart there (head h reads h modulo Hk): they are reordered, which rounds nothing.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.fields import default_softmax_scale
from accuracy.package import installed, replaced
from accuracy.variant.base import Rank
from accuracy.world.processes import ProcessesWorld

DISTRIBUTION = "ring-attention-pytorch"
BUCKET_SIZE = 1024  # keys and queries at a time, as published
TRITON = "triton-nightly"  # a plain triton does not count
TRITON_DTYPES = ("bfloat16", "float16", "float32")


def unsupported(case: Case) -> str | None:
    """Not installed; what its products or its Triton kernel cannot compute; a scale of one's own."""
    if missing := installed.unsupported(DISTRIBUTION):
        return missing
    if case.problem.softmax_scale != default_softmax_scale(case.problem.head_dim):
        return f"{DISTRIBUTION} has 1/sqrt(head_dim) built in; set problem.softmax_scale=null"
    if case.world_size == 1 and case.device == "cpu":
        return f"{DISTRIBUTION} sends to its own rank at world_size 1, which gloo cannot; use 2 or more ranks"
    if str(dict(case.variant.options)["fn"]).endswith("_triton"):
        return _unsupported_triton(case)
    return _unsupported_products(case)


def _unsupported_triton(case: Case) -> str | None:
    if case.device != "cuda":
        return f"{DISTRIBUTION}'s Triton kernel needs CUDA; use ring_attention_pytorch_ring or _striped"
    if case.dtype not in TRITON_DTYPES:
        return f"{DISTRIBUTION}'s Triton kernel has no {case.dtype}; use one of {', '.join(TRITON_DTYPES)}"
    if installed.unsupported(TRITON):
        return f"{DISTRIBUTION}'s Triton kernel ends the process where it does not find {TRITON}; install that"
    return None


def _unsupported_products(case: Case) -> str | None:
    if case.kernel.name != "eager":
        return f"{DISTRIBUTION} computes blocks with torch products of its own; compare with kernel=eager"
    if case.dtype != "float32":
        return f"{DISTRIBUTION} multiplies float32 weights with {case.dtype} values, which torch refuses; use float32"
    local = case.problem.seqlen // case.world_size
    if local > BUCKET_SIZE and local % BUCKET_SIZE:
        return f"{DISTRIBUTION} needs {local} tokens a rank to be a multiple of its bucket of {BUCKET_SIZE}"
    return None


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    """Its default group is the case's."""
    assert isinstance(rank.world, ProcessesWorld)
    here = {"get_rank": _always(rank.world.rank), "get_world_size": _always(rank.world.size)}
    with ExitStack() as stack:
        for name in ("ring", "ring_flash_attention", "ring_flash_attention_cuda"):
            module = importlib.import_module(f"ring_attention_pytorch.{name}")
            transfers = {"dist": _transfers(rank.world.group)} if name == "ring" else {}
            stack.enter_context(replaced.names(module, **here, **transfers))
        yield


def _always(number: int) -> Callable[[], int]:
    return lambda: number


def _transfers(group: dist.ProcessGroup) -> SimpleNamespace:
    """What its ring asks of `torch.distributed`, on a group, whose ranks its ranks are."""

    def operation(function: Any, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(function, tensor, group=group, group_peer=peer)

    return SimpleNamespace(
        isend=dist.isend,
        irecv=dist.irecv,
        P2POp=operation,
        batch_isend_irecv=dist.batch_isend_irecv,
        barrier=lambda: dist.barrier(group),
    )


def ring(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`ring_flash_attn`: contiguous shards."""
    return _attend("ring_flash_attn", q, k, v, causal, striped=False)


def striped(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """`ring_flash_attn(striped_ring_attn=True)`: striped shards, one bucket a rank."""
    return _attend("ring_flash_attn", q, k, v, causal, striped=True)


def ring_triton(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`ring_flash_attn_cuda`: contiguous shards."""
    return _attend("ring_flash_attn_cuda", q, k, v, causal, striped=False)


def striped_triton(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> Tensor:
    """`ring_flash_attn_cuda(striped_ring_attn=True)`: striped shards."""
    return _attend("ring_flash_attn_cuda", q, k, v, causal, striped=True)


def _attend(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, *, striped: bool) -> Tensor:
    heads_kv = k.shape[2]
    function = getattr(importlib.import_module("ring_attention_pytorch"), name)
    apart = q.unflatten(2, (heads_kv, -1)).transpose(2, 3).flatten(2, 3)
    out: Tensor = function(
        apart, k, v, causal=causal, ring_reduce_col=True, striped_ring_attn=striped,
        bucket_size=q.shape[1] if striped else BUCKET_SIZE,
    )  # fmt: skip
    return out.unflatten(2, (-1, heads_kv)).transpose(2, 3).flatten(2, 3)
