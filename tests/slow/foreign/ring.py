"""A stranger's ring in steps, and what it does when one of them is overridden: `attend(..., steps=Steps())`.

Keys and values go round with isend and irecv, gradients with them; sums are float32, in a float64 call float64. The
right step is the one of `Steps`; `tests.slow.foreign.functions` has wrong ones.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Where = tuple[int, int, int]
"""The rank, the ring's size, and whose keys are at hand."""


def shifted(tensors: tuple[Tensor, ...], group: Any) -> tuple[Tensor, ...]:
    """Each tensor to the next rank, and what the one before sends."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if size == 1:
        return tensors
    received = tuple(torch.empty_like(x) for x in tensors)
    to, source = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    sends = [dist.P2POp(dist.isend, x.contiguous(), to, group) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, source, group) for x in received]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()
    return received


class Steps:
    """What the ring does at each place."""

    def given(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as the forward takes them."""
        return q, k, v

    def times(self, where: Where, length: int, causal: bool) -> int:
        """How many times a block counts."""
        rank, _, source = where
        return int(not causal or source <= rank)

    def received(self, mine: tuple[Tensor, ...], group: Any, hop: int, way: str) -> tuple[Tensor, ...]:
        """What the rank before sends, while this rank's goes to the next."""
        return shifted(mine, group)

    def gradients(self, dq: Tensor, dk: Tensor, dv: Tensor, group: Any) -> tuple[Tensor, ...]:
        """What autograd gets."""
        return dq, dk, dv


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def to_heads(x: Tensor, like: Tensor) -> Tensor:
    """(B, S, Hk, D) to all query heads."""
    return wide(x).repeat_interleave(like.shape[2] // x.shape[2], 2)


def of_keys(x: Tensor, like: Tensor) -> Tensor:
    """Gradients (B, S, H, D) of query heads, summed over those that share a key head."""
    return x.unflatten(2, (like.shape[2], -1)).sum(3)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, steps: Steps, how: Any) -> tuple[Tensor, Tensor]:
        ctx.steps, ctx.how = steps, how
        q, k, v = steps.given(q, k, v)
        causal, scale, group = how
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        out, lse, travelling = None, None, (k, v)
        for hop in range(size):
            where = rank, size, (rank - hop) % size
            for _ in range(steps.times(where, q.shape[1], causal)):
                scores = scores_of(q, travelling[0], causal, scale, where)
                block = scores.logsumexp(-1)
                part = torch.einsum("bhqk,bkhd->bqhd", (scores - block[..., None]).exp(), to_heads(travelling[1], q))
                if lse is None:
                    out, lse = part, block
                else:
                    new = torch.logaddexp(lse, block)
                    old_share, new_share = ((x - new).exp().transpose(1, 2)[..., None] for x in (lse, block))
                    out, lse = out * old_share + part * new_share, new
            if hop < size - 1:
                travelling = steps.received(travelling, group, hop, "forward")
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Any, ...]:
        (q, k, v, out, lse), steps, (causal, scale, group) = ctx.saved_tensors, ctx.steps, ctx.how
        rank, size, dout = dist.get_rank(group), dist.get_world_size(group), wide(dout)
        delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
        dq, dk, dv = (torch.zeros_like(wide(x)) for x in (q, k, v))
        travelling = k, v, dk, dv
        for hop in range(size):
            where = rank, size, (rank - hop) % size
            k_here, v_here, dk, dv = travelling
            for _ in range(steps.times(where, q.shape[1], causal)):
                weights = (scores_of(q, k_here, causal, scale, where) - lse[..., None]).exp()
                slope = torch.einsum("bqhd,bkhd->bhqk", dout, to_heads(v_here, q)) - delta
                slope = weights * slope * scale
                dq = dq + torch.einsum("bhqk,bkhd->bqhd", slope, to_heads(k_here, q))
                dk = dk + of_keys(torch.einsum("bhqk,bqhd->bkhd", slope, wide(q)), k)
                dv = dv + of_keys(torch.einsum("bhqk,bqhd->bkhd", weights, dout), k)
            travelling = steps.received((k_here, v_here, dk, dv), group, hop, "backward")
        found = steps.gradients(dq, *travelling[2:], group)
        return *(x.to(y.dtype) for x, y in zip(found, (q, k, v), strict=True)), None, None


def scores_of(q: Tensor, k: Tensor, causal: bool, scale: float, where: Where) -> Tensor:
    """(B, H, S/W, S/W) of this rank's queries and the keys at hand."""
    rank, _, source = where
    scores = torch.einsum("bqhd,bkhd->bhqk", wide(q), to_heads(k, q)) * scale
    if causal and source >= rank:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool)
        scores = scores.masked_fill(hidden.triu(1) if source == rank else hidden, -torch.inf)
    return scores


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, steps: Steps | None = None
) -> tuple[Tensor, Tensor]:
    out, lse = Ring.apply(q, k, v, steps or Steps(), (causal, softmax_scale, group))
    return out, lse


class Fresh(Steps):
    """Fresh buffers once the pipeline is full: what the first two of more ranks added to dk and dv is lost."""

    def received(self, mine: tuple[Tensor, ...], group: Any, hop: int, way: str) -> tuple[Tensor, ...]:
        found = super().received(mine, group, hop, way)
        stale = way == "backward" and hop == 1 and dist.get_world_size(group) > 2
        return (*found[:2], *map(torch.zeros_like, found[2:])) if stale else found


def right(q, k, v, causal=True, softmax_scale=None, group=None):  # type: ignore[no-untyped-def]
    """Called as a newcomer's function may be."""
    return attend(q, k, v, causal=causal, softmax_scale=softmax_scale or q.shape[-1] ** -0.5, group=group)


def wrong_from_three_ranks_on(q, k, v, causal=True, softmax_scale=None, group=None):  # type: ignore[no-untyped-def]
    scale = softmax_scale or q.shape[-1] ** -0.5
    return attend(q, k, v, causal=causal, softmax_scale=scale, group=group, steps=Fresh())
