"""Under torchrun: a step of two layers of context parallelism, the second one's dk and dv the next rank's; and more."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import accuracy
from accuracy.kernel import eager
from accuracy.package import installed, ring_flash_attn
from tests.live import torch_ranks


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: int) -> Tensor:
        ctx.shift = shift
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[(dist.get_rank() + ctx.shift) % dist.get_world_size()], None


def attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, shift: int) -> Tensor:
    k, v = (Gathered.apply(x, shift) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    row = torch.arange(q.shape[1])[:, None] + dist.get_rank() * q.shape[1]
    scores = scores.masked_fill(row < torch.arange(k.shape[1]), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


class Layer(nn.Module):
    def __init__(self, shift: int) -> None:
        super().__init__()
        self.into, self.shift = nn.Linear(32, 96), shift

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 16)) for each in self.into(x).chunk(3, -1))
        return x + attend(q, k, v, is_causal=True, shift=self.shift).flatten(2)


def published(folder: Path) -> None:
    """ring-flash-attn's own function around a stand-in of flash-attn, in two dtypes."""
    ring_flash_attn._imported(eager.KERNEL())
    package = importlib.import_module("ring_flash_attn")

    torch.manual_seed(dist.get_rank())
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v, dout = (torch.randn(1, 16, heads, 16).to(dtype) for heads in (4, 2, 2, 4))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        with accuracy.capture(None, folder / str(dtype)):
            package.ring_flash_attn_func(q, k, v, causal=True).backward(dout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(Layer(0), Layer(1))
    x = torch.randn(1, 32, 32).chunk(dist.get_world_size(), 1)[dist.get_rank()]
    with accuracy.capture(model, sys.argv[1], functions=[attend], sharding="contiguous"):
        model(x).square().sum().backward()
    if installed.unsupported("ring-flash-attn") is None:
        published(Path(sys.argv[1]))
    torch_ranks.captured(Path(sys.argv[1]))
    dist.destroy_process_group()
