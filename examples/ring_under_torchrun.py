"""Your own ring attention, measured in the processes that torchrun started:

torchrun --standalone --nproc-per-node 2 examples/ring_under_torchrun.py
"""

import os

import torch
import torch.distributed as dist

import accuracy


def my_ring(q, k, v, *, causal, softmax_scale, group):
    """Forward of a ring: each rank's keys and values travel once around. Merges in float32."""
    rank, size, tokens = dist.get_rank(group), dist.get_world_size(group), q.shape[1]
    out, lse = torch.zeros_like(q, dtype=torch.float32), torch.full((*q.shape[:3], 1), -torch.inf, device=q.device)
    row = torch.arange(tokens, device=q.device)[:, None]
    for hop in range(size):
        owner = (rank - hop) % size
        if not causal or owner <= rank:
            share = q.shape[2] // k.shape[2]
            keys, values = (x.repeat_interleave(share, 2) for x in (k, v))
            scores = torch.einsum("bqhd,bkhd->bqhk", q.float(), keys.float()) * softmax_scale
            if causal and owner == rank:
                hidden = (row < torch.arange(tokens, device=q.device))[:, None]
                scores = scores.masked_fill(hidden, -torch.inf)
            block_lse = scores.logsumexp(-1, keepdim=True)
            block = torch.einsum("bqhk,bkhd->bqhd", (scores - block_lse).exp(), values.float())
            merged = torch.logaddexp(lse, block_lse)
            out, lse = out * (lse - merged).exp() + block * (block_lse - merged).exp(), merged
        k, v = (_from_before(x, rank, size, group) for x in (k, v))
    return out.to(q.dtype).detach()


def _from_before(x, rank, size, group):
    received = torch.empty_like(x)
    if size == 1:
        return x
    sends = dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(rank + 1) % size)
    receives = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    return received


if __name__ == "__main__":
    found = accuracy.measure({"my_ring": my_ring}, world_size=[1, 2], dtype=["bfloat16", "float32"], seqlen=256)
    if os.environ.get("RANK", "0") == "0":  # every process has the same table
        print(accuracy.summary(found))
