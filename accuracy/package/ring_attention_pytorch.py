"""lucidrains/ring-attention-pytorch 0.5.20: ring and striped ring, in its own torch products.

It knows no groups: within `surroundings` its rank, its world size and its transfers are those of the case. It computes
blocks itself, so the case's kernel serves single device alone. No lse comes back.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import torch.distributed as dist
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.fields import default_softmax_scale
from accuracy.package import installed, substitutes
from accuracy.variant.base import Rank
from accuracy.world.processes import ProcessesWorld

DISTRIBUTION = "ring-attention-pytorch"
BUCKET_SIZE = 1024  # keys and queries at a time, as published


def unsupported(case: Case) -> str | None:
    """Not installed; a scale of one's own; what its products cannot compute."""
    if reason := installed.unsupported_case(DISTRIBUTION, case, to_itself=(installed.called(case),)):
        return reason
    if case.problem.softmax_scale != default_softmax_scale(case.problem.head_dim):
        return f"{DISTRIBUTION} has 1/sqrt(head_dim) built in; set problem.softmax_scale=null"
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
    """Its default group is the case's, whose ranks its ranks are."""
    assert isinstance(rank.world, ProcessesWorld)
    world, group = rank.world, rank.world.group
    transfers = SimpleNamespace(
        isend=dist.isend,
        irecv=dist.irecv,
        P2POp=lambda function, tensor, peer: dist.P2POp(function, tensor, group=group, group_peer=peer),
        batch_isend_irecv=dist.batch_isend_irecv,
        barrier=lambda: dist.barrier(group),
    )
    with ExitStack() as stack:
        for name in ("ring", "ring_flash_attention"):
            module = importlib.import_module(f"ring_attention_pytorch.{name}")
            here = {"get_rank": lambda: world.rank, "get_world_size": lambda: world.size}
            stack.enter_context(substitutes.names(module, **here, **({"dist": transfers} if name == "ring" else {})))
        yield


def _attend(
    shards: str, q: Tensor, k: Tensor, v: Tensor, *,
    causal: bool, softmax_scale: float, group: dist.ProcessGroup,
) -> Tensor:  # fmt: skip
    """Query head h reads head h modulo Hk there: heads are reordered, which rounds nothing. Striped: one bucket a rank.
    The group is `surroundings`'."""
    heads_kv = k.shape[2]
    apart = q.unflatten(2, (heads_kv, -1)).transpose(2, 3).flatten(2, 3)
    out: Tensor = importlib.import_module("ring_attention_pytorch").ring_flash_attn(
        apart, k, v, causal=causal, ring_reduce_col=True, striped_ring_attn=shards == "striped",
        bucket_size=q.shape[1] if shards == "striped" else BUCKET_SIZE,
    )  # fmt: skip
    return out.unflatten(2, (-1, heads_kv)).transpose(2, 3).flatten(2, 3)


ring = partial(_attend, "contiguous")
striped = partial(_attend, "striped")
