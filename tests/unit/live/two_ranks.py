"""Under torchrun: a step of two layers of context parallelism, the second one's dk and dv the next rank's; and captures
of torch's own FSDP and context parallelism, and of ring-flash-attn's entry points, each in a folder of its own."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import accuracy
from accuracy.kernel import eager
from accuracy.package import installed, ring_flash_attn
from tests.contract.variant.somebody import without_lse
from tests.slow.foreign.ring import shifted
from tests.unit.live.model import Layer, stack


class OfTheNext(torch.autograd.Function):
    """The identity, whose gradient is the next rank's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return shifted(gradient, dist.group.WORLD, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, shift: int) -> Tensor:
    k, v = (OfTheNext.apply(x) if shift else x for x in (k, v))
    how = {"softmax_scale": q.shape[-1] ** -0.5, "group": dist.group.WORLD}
    return without_lse(q, k, v, causal=is_causal, **how)


def sharded_sequence(folder: Path) -> None:
    torch.manual_seed(0)
    layers = (Layer(attention=lambda *x, shift=shift: attend(*x, is_causal=True, shift=shift)) for shift in (0, 1))
    model = nn.Sequential(*layers)
    x = torch.randn(1, 32, 32).chunk(dist.get_world_size(), 1)[dist.get_rank()]
    with accuracy.capture(model, folder, functions=[attend], sharding="contiguous"):
        model(x).square().sum().backward()


def sharded_weights(folder: Path, mesh: DeviceMesh) -> None:
    model = stack(None, None)
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    with accuracy.capture(model, folder):
        model(torch.randn(1, 24, 32)).square().sum().backward()


def shared_sequences(folder: Path, mesh: DeviceMesh) -> None:
    """torch rings its kernels on CUDA only; its DTensors compute without a mask anywhere."""
    attention = importlib.import_module("torch.distributed.tensor.experimental._attention")
    attention._cp_options.enable_load_balance = False
    for name in ("inside", "around"):
        model = stack(None, None, causal=False)
        x = torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(1))
        shared = context_parallel(mesh, buffers=[x], buffer_seq_dims=[1])
        captured = accuracy.capture(model, folder / name)
        first, second = (shared, captured) if name == "inside" else (captured, shared)
        with sdpa_kernel([SDPBackend.MATH]), first, second:
            model(x).square().sum().backward()


def published(folder: Path) -> None:
    """ring-flash-attn's own functions around a stand-in of flash-attn: in two dtypes, and packed, with documents of
    which each rank has a part, or cut where the ranks' tokens end."""
    ring_flash_attn._imported(eager.KERNEL())
    package, rank, size = importlib.import_module("ring_flash_attn"), dist.get_rank(), dist.get_world_size()
    whole = torch.tensor([0, 24, 32, 64], dtype=torch.int32)
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
    llama3 = dict(zip(names, package.llama3_flash_attn_prepare_cu_seqlens(whole, True, rank, size), strict=True))
    shared = {"cu_seqlens": whole // size, "max_seqlen": 32 // size}
    half, tokens = torch.bfloat16, (64 // size,)
    for name, function, dtype, shape, words in (
        ("torch.bfloat16", "ring_flash_attn_func", half, (1, 16), {}),
        ("torch.float32", "ring_flash_attn_func", torch.float32, (1, 16), {}),
        ("ring", "ring_flash_attn_varlen_func", half, tokens, shared),
        ("zigzag_ring", "zigzag_ring_flash_attn_varlen_func", half, tokens, shared),
        ("llama3", "llama3_flash_attn_varlen_func", half, tokens, {**llama3, "heads_k_stride": 1}),
    ):
        torch.manual_seed(rank)
        q, k, v, dout = (torch.randn(*shape, heads, 16).to(dtype) for heads in (4, 2, 2, 4))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        with accuracy.capture(None, folder / name):
            getattr(package, function)(q, k, v, causal=True, **words).backward(dout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    root, mesh = Path(sys.argv[1]), init_device_mesh("cpu", (dist.get_world_size(),))
    sharded_sequence(root)
    sharded_weights(root / "weights", mesh)
    shared_sequences(root, mesh)
    if installed.unsupported("ring-flash-attn") is None:
        published(root)
    dist.destroy_process_group()
    accuracy.capture.wait()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo that lets go of a tensor while Python ends would abort the process
