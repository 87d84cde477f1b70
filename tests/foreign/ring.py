"""A stranger's ring: keys and values go round with batch_isend_irecv, all sums in float32, (out, lse) returned."""

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


def scores_of(q: Tensor, k: Tensor, scale: float, causal: bool, rank: int, source: int) -> Tensor:
    """(B, H, S/W, S/W) in float32, of this rank's queries and a rank's keys."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal and source >= rank:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool)
        scores = scores.masked_fill(hidden if source > rank else hidden.triu(1), -torch.inf)
    return scores


def wide(x: Tensor, share: int = 1) -> Tensor:
    return x.float().repeat_interleave(share, 2)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, group: Any, home: bool
    ) -> tuple[Tensor, Tensor]:
        size, rank, share = dist.get_world_size(group), dist.get_rank(group), q.shape[2] // k.shape[2]
        out, lse = torch.zeros(q.shape), torch.full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf)
        travelling = k, v
        for step in range(size):
            source = (rank - step) % size
            if not causal or source <= rank:
                scores = scores_of(wide(q), wide(travelling[0], share), scale, causal, rank, source)
                block = scores.logsumexp(-1)
                part = torch.einsum("bhqk,bkhd->bqhd", torch.exp(scores - block[..., None]), wide(travelling[1], share))
                new = torch.logaddexp(lse, block)
                old_share, new_share = (torch.exp(x - new).transpose(1, 2)[..., None] for x in (lse, block))
                out, lse = out * old_share + part * new_share, new
            travelling = shifted(travelling, group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = causal, scale, group, home
        ctx.mark_non_differentiable(lse)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        causal, scale, group, home = ctx.how
        size, rank, share = dist.get_world_size(group), dist.get_rank(group), q.shape[2] // k.shape[2]
        dout = gradients[0].float()
        delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
        dq, dk, dv = (torch.zeros(x.shape) for x in (q, k, v))
        travelling = k, v, dk, dv
        for step in range(size):
            source = (rank - step) % size
            k_here, v_here, dk, dv = travelling
            if not causal or source <= rank:
                weights = torch.exp(
                    scores_of(wide(q), wide(k_here, share), scale, causal, rank, source) - lse[..., None]
                )
                slope = weights * (torch.einsum("bqhd,bkhd->bhqk", dout, wide(v_here, share)) - delta) * scale
                dq = dq + torch.einsum("bhqk,bkhd->bqhd", slope, wide(k_here, share))
                of_keys = (torch.einsum("bhqk,bqhd->bkhd", x, y) for x, y in ((slope, wide(q)), (weights, dout)))
                dk, dv = (sum_ + x.unflatten(2, (-1, share)).sum(3) for sum_, x in zip((dk, dv), of_keys, strict=True))
            travelling = k_here, v_here, dk, dv
            if step < size - 1 or home:  # the last step brings the gradients home
                travelling = shifted(travelling, group)
        return dq.to(q.dtype), travelling[2].to(k.dtype), travelling[3].to(v.dtype), None, None, None, None


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, home: bool = True
) -> tuple[Tensor, Tensor]:
    out, lse = Ring.apply(q, k, v, causal, softmax_scale, group, home)
    return out, lse


def one_rank_off(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values are one step short of home."""
    return attend(q, k, v, home=False, **how)
