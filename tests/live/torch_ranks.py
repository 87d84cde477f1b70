"""Captures on ranks of torch's own FSDP and context parallelism, and of ring-flash-attn's packed entry points."""

import importlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import accuracy
from accuracy.kernel import eager
from accuracy.package import installed, ring_flash_attn


class Layer(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.into, self.causal = nn.Linear(32, 96), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 16)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        return x + functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


def stack(causal: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(causal), Layer(causal))


def sharded_weights(folder: Path, mesh: DeviceMesh) -> None:
    model = stack(True)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with accuracy.capture(model, folder):
        model(torch.randn(1, 24, 32)).square().sum().backward()


def shared_sequences(folder: Path, mesh: DeviceMesh) -> None:
    """torch rings its kernels on CUDA only; its DTensors compute without a mask anywhere."""
    attention = importlib.import_module("torch.distributed.tensor.experimental._attention")
    attention._cp_options.enable_load_balance = False
    for name in ("inside", "around"):
        model, x = stack(False), torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(1))
        shared = context_parallel(mesh, buffers=[x], buffer_seq_dims=[1])
        captured = accuracy.capture(model, folder / name)
        first, second = (shared, captured) if name == "inside" else (captured, shared)
        with sdpa_kernel([SDPBackend.MATH]), first, second:
            model(x).square().sum().backward()


def packed(folder: Path) -> None:
    """Documents of which each rank has a part, and documents cut where the ranks' tokens end."""
    ring_flash_attn._imported(eager.KERNEL())
    package, rank, size = importlib.import_module("ring_flash_attn"), dist.get_rank(), dist.get_world_size()
    whole = torch.tensor([0, 24, 32, 64], dtype=torch.int32)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
    llama3 = dict(
        zip(names, package.llama3_flash_attn_prepare_cu_seqlens(whole, True, rank, size), strict=True), heads_k_stride=1
    )
    shared = {"cu_seqlens": whole // size, "max_seqlen": 32 // size}
    for name, words in (("ring", shared), ("zigzag_ring", shared), ("llama3", llama3)):
        torch.manual_seed(rank)
        q, k, v, dout = (torch.randn(64 // size, heads, 16).bfloat16() for heads in (4, 2, 2, 4))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        entry = f"{name}_flash_attn_varlen_func"
        with accuracy.capture(None, folder / name):
            getattr(package, entry)(q, k, v, causal=True, **words).backward(dout)


def captured(root: Path) -> None:
    """All of it, each in a folder of its own."""
    over = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded_weights(root / "weights", over)
    shared_sequences(root, over)
    if installed.unsupported("ring-flash-attn") is None:
        packed(root)
