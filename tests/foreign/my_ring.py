"""Ring attention of my own: contiguous shards, K/V travel the ring, gradients travel with them."""

import math

import torch
import torch.distributed as dist


def _swap(tensors, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    to = dist.get_global_rank(group, (rank + 1) % world) if group is not None else (rank + 1) % world
    frm = dist.get_global_rank(group, (rank - 1) % world) if group is not None else (rank - 1) % world
    out = [torch.empty_like(t) for t in tensors]
    ops = [dist.P2POp(dist.isend, t.contiguous(), to, group) for t in tensors]
    ops += [dist.P2POp(dist.irecv, o, frm, group) for o in out]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


def _scores(q, k, scale, src, rank, causal):
    s = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * scale
    if causal and src == rank:
        n = s.shape[-1]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=s.device).triu(1), -math.inf)
    return s


class Ring(torch.autograd.Function):
    BUG = False

    @staticmethod
    def forward(ctx, q, k, v, causal, scale, group, bug):
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        rep = q.shape[2] // k.shape[2]
        kk, vv, out, lse = k, v, None, None
        for step in range(world):
            src = (rank - step) % world
            if not causal or src <= rank:
                s = _scores(q, kk.repeat_interleave(rep, 2), scale, src, rank, causal)
                block_lse = s.logsumexp(-1)
                block = torch.einsum(
                    "bhij,bjhd->bihd", (s - block_lse[..., None]).exp(), vv.repeat_interleave(rep, 2).float()
                )
                if out is None:
                    out, lse = block, block_lse
                else:
                    new = torch.logaddexp(lse, block_lse)
                    w0, w1 = [(x - new).exp().transpose(1, 2)[..., None] for x in (lse, block_lse)]
                    out, lse = out * w0 + block * w1, new
            if step + 1 < world:
                kk, vv = _swap([kk, vv], group)
        ctx.save_for_backward(q, k, v, out.to(q.dtype), lse)
        ctx.how = causal, scale, group, bug
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx, dout, _dlse):
        q, k, v, out, lse = ctx.saved_tensors
        causal, scale, group, bug = ctx.how
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        rep = q.shape[2] // k.shape[2]
        delta = (dout.float() * out.float()).sum(-1).transpose(1, 2)
        dq = torch.zeros_like(q, dtype=torch.float32)
        dk, dv = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
        kk, vv = k, v
        for step in range(world):
            src = (rank - step) % world
            if bug and step == 2:  # "fresh buffers once the pipeline is full": loses what the first two ranks added
                dk, dv = torch.zeros_like(dk), torch.zeros_like(dv)
            if not causal or src <= rank:
                kr, vr = kk.repeat_interleave(rep, 2), vv.repeat_interleave(rep, 2)
                p = (_scores(q, kr, scale, src, rank, causal) - lse[..., None]).exp()
                dp = torch.einsum("bihd,bjhd->bhij", dout.float(), vr.float())
                ds = p * (dp - delta[..., None]) * scale
                dq += torch.einsum("bhij,bjhd->bihd", ds, kr.float())
                dk = dk + torch.einsum("bhij,bihd->bjhd", ds, q.float()).unflatten(2, (-1, rep)).sum(3)
                dv = dv + torch.einsum("bhij,bihd->bjhd", p, dout.float()).unflatten(2, (-1, rep)).sum(3)
            if world > 1:
                kk, vv, dk, dv = _swap([kk, vv, dk, dv], group)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def ring_attention(q, k, v, causal=True, softmax_scale=None, group=None, bug=False):
    return Ring.apply(q, k, v, causal, softmax_scale or q.shape[-1] ** -0.5, group, bug)


def ring_good(q, k, v, causal=True, softmax_scale=None, group=None):
    return ring_attention(q, k, v, causal, softmax_scale, group)


def ring_bad(q, k, v, causal=True, softmax_scale=None, group=None):
    return ring_attention(q, k, v, causal, softmax_scale, group, bug=True)
