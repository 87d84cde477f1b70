"""A stranger's ring in steps, and what it does when one of them is overridden: `attend(..., steps=Steps())`.

Keys and values go round with isend and irecv; sums are float32, in a float64 call float64. The right step is the one of
`Steps`; `tests.foreign.twins` has the wrong ones.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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
    """What the ring does at each place; where: the rank, the ring's size and whose keys are at hand."""

    def given(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as the forward takes them."""
        return q, k, v

    def scale(self, scale: float, way: str) -> float:
        """Of the scores, in the forward or the backward."""
        return scale

    def spread(self, x: Tensor, share: int) -> Tensor:
        """(B, S, Hk, D) to all query heads."""
        return x.repeat_interleave(share, 2)

    def gathered(self, x: Tensor, share: int) -> Tensor:
        """Gradients (B, S, H, D) of query heads, summed over those that share a key head."""
        return x.unflatten(2, (-1, share)).sum(3)

    def hidden(self, length: int) -> Tensor:
        """(S, S) of a rank's own keys under a causal mask."""
        return torch.ones(length, length, dtype=torch.bool).triu(1)

    def times(self, where: tuple[int, int, int], length: int, causal: bool, way: str) -> int:
        """How many times a block counts."""
        rank, _, source = where
        return int(not causal or source <= rank)

    def received(self, mine: tuple[Tensor, ...], group: Any, hop: int, way: str) -> tuple[Tensor, ...]:
        """What the rank before sends, while this rank's goes to the next."""
        return shifted(mine, group)

    def merge(self, out: Tensor, lse: Tensor, part: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Two partials are one; out (B, S, H, D), lse (B, H, S)."""
        new = torch.logaddexp(lse, block)
        old_share, new_share = (rows(torch.exp(x - new)) for x in (lse, block))
        return out * old_share + part * new_share, new

    def saved(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """What the backward reads."""
        return out, lse

    def returned(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """What the caller gets."""
        return out, lse

    def add(self, total: Tensor, x: Tensor) -> Tensor:
        """Onto a sum of gradients."""
        return total + x

    def zeros(self, name: str, like: Tensor) -> Tensor:
        """Where a sum of gradients begins."""
        return torch.zeros(like.shape, dtype=wide(like).dtype)

    def gradients(self, dq: Tensor, dk: Tensor, dv: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """What autograd gets."""
        return dq, dk, dv


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rows(x: Tensor) -> Tensor:
    """(B, H, S) beside (B, S, H, D)."""
    return x.transpose(1, 2)[..., None]


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, steps: Steps, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
        ctx.steps, ctx.how, ctx.share = steps, how, q.shape[2] // k.shape[2]
        q, k, v = steps.given(q, k, v)
        out, lse, travelling = None, None, (k, v)
        for hop in range(how["size"]):
            where = how["rank"], how["size"], (how["rank"] - hop) % how["size"]
            for _ in range(steps.times(where, q.shape[1], how["causal"], "forward")):
                scores = scores_of(ctx, q, travelling[0], where, "forward")
                block = scores.logsumexp(-1)
                values = steps.spread(wide(travelling[1]), ctx.share)
                part = torch.einsum("bhqk,bkhd->bqhd", torch.exp(scores - block[..., None]), values)
                out, lse = (part, block) if lse is None else steps.merge(out, lse, part, block)
            if hop < how["size"] - 1:
                travelling = steps.received(travelling, how["group"], hop, "forward")
        ctx.save_for_backward(q, k, v, *steps.saved(out, lse))
        out, lse = steps.returned(out, lse)
        ctx.mark_non_differentiable(lse)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx: Any, *received: Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        steps, how, share = ctx.steps, ctx.how, ctx.share
        dout, scale = wide(received[0]), steps.scale(how["scale"], "backward")
        delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
        dq, dk, dv = (steps.zeros(name, x) for name, x in (("dq", q), ("dk", k), ("dv", v)))
        travelling = k, v, dk, dv
        for hop in range(how["size"]):
            where = how["rank"], how["size"], (how["rank"] - hop) % how["size"]
            k_here, v_here, dk, dv = travelling
            for _ in range(steps.times(where, q.shape[1], how["causal"], "backward")):
                weights = torch.exp(scores_of(ctx, q, k_here, where, "backward") - lse[..., None])
                slope = torch.einsum("bqhd,bkhd->bhqk", dout, steps.spread(wide(v_here), share)) - delta
                slope = weights * slope * scale
                dq = steps.add(dq, torch.einsum("bhqk,bkhd->bqhd", slope, steps.spread(wide(k_here), share)))
                of_keys = (torch.einsum("bhqk,bqhd->bkhd", x, y) for x, y in ((slope, wide(q)), (weights, dout)))
                dk, dv = (steps.add(x, steps.gathered(y, share)) for x, y in zip((dk, dv), of_keys, strict=True))
            travelling = steps.received((k_here, v_here, dk, dv), how["group"], hop, "backward")
        found = steps.gradients(dq, *travelling[2:], how)
        return *(x.to(y.dtype) for x, y in zip(found, (q, k, v), strict=True)), None, None


def scores_of(ctx: Any, q: Tensor, k: Tensor, where: tuple[int, int, int], way: str) -> Tensor:
    """(B, H, S/W, S/W) of this rank's queries and the keys at hand."""
    steps, (rank, _, source) = ctx.steps, where
    scores = torch.einsum("bqhd,bkhd->bhqk", wide(q), steps.spread(wide(k), ctx.share))
    scores = scores * steps.scale(ctx.how["scale"], way)
    if ctx.how["causal"] and source >= rank:
        hidden = steps.hidden(q.shape[1]) if source == rank else torch.ones(scores.shape[-2:], dtype=torch.bool)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, steps: Steps | None = None
) -> tuple[Tensor, Tensor]:
    how = {"causal": causal, "scale": softmax_scale, "group": group, "rank": dist.get_rank(group),
           "size": dist.get_world_size(group)}  # fmt: skip
    out, lse = Ring.apply(q, k, v, steps or Steps(), how)
    return out, lse
