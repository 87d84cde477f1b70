"""torchrun --nproc-per-node=4 reproduce.py: error of context parallelism by rank over that of flash-attn alone."""

# fmt: off
import os
from functools import partial

import torch
import torch.distributed as dist
from flash_attn import flash_attn_func
from transformer_engine.pytorch.attention.dot_product_attention.context_parallel import attn_forward_func_with_cp

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
S, H, D = 8192, 8, 128
torch.manual_seed(0)
q, k, v, dout = (torch.randn(1, S, H, D, device="cuda").bfloat16() for _ in range(4))

def mine(x):  # this rank's chunk and its mirror: DualChunkSwap
    chunks = x.chunk(2 * size, 1)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], 1).contiguous()
def float64(q, k, v):
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * D**-0.5
    hidden = torch.ones(S, S, dtype=torch.bool, device="cuda").triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)
def parallel(way, q, k, v):
    borders = torch.tensor([0, S], dtype=torch.int32, device="cuda")
    return attn_forward_func_with_cp(True, q, k, v, borders, borders, S, S, None, None, 0.0, dist.group.WORLD,
        list(range(size)), torch.cuda.Stream(), way, attn_mask_type="causal", window_size=(-1, 0), deterministic=True)
def run(attention, q, k, v, dout):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves).view_as(dout)
    return [x.detach() for x in (out, *torch.autograd.grad(out, leaves, dout))]

truth = [mine(x) for x in run(float64, *(x.double() for x in (q, k, v, dout)))]
alone = [mine(x) for x in run(partial(flash_attn_func, causal=True, deterministic=True), q, k, v, dout)]
for way in ("p2p", "all_gather", "a2a"):
    found = run(partial(parallel, way), *(mine(x) for x in (q, k, v, dout)))
    ratios = [float((a - t).norm() / (b - t).norm()) for a, b, t in zip(found, alone, truth, strict=True)]
    print(way, size, "ranks, rank", rank, "out dq dk dv", *(f"{ratio:.2f}" for ratio in ratios))
