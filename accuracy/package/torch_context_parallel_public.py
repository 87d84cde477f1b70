"""torch's public context parallelism: `context_parallel` around `scaled_dot_product_attention`, CUDA, no lse.

As in a model: what the context shards is a buffer of the whole sequence (positions); q, k and v are this rank's shards
in its head-tail order, which is zigzag. It runs torch's flash kernel (16 bit), whatever the kernel of the case.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import installed

DISTRIBUTION = "torch"
FLASH_KERNELS = ("torch_flash", "flash_attn")
DTYPES = ("bfloat16", "float16")


def unsupported(case: Case) -> str | None:
    """No CUDA, a full mask, or what is not the flash kernel's."""
    if case.device != "cuda":
        return "torch's context_parallel works on CUDA only; use a torch_context_parallel_*_balanced variant"
    if not case.problem.causal:
        return installed.UNBALANCED
    if case.kernel.name not in FLASH_KERNELS or case.dtype not in DTYPES:
        return f"torch's context_parallel runs a 16-bit flash kernel; use kernel={FLASH_KERNELS[0]} and {DTYPES[0]}"
    return None


def public(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup) -> Tensor:
    """q (B, S/W, H, D), k, v (B, S/W, Hk, D), zigzag shards -> out."""
    inside = partial(_context, group, q.shape[1] * dist.get_world_size(group), q.device)
    out: Tensor = _Public.apply(q, k, v, {"is_causal": causal, "scale": softmax_scale, "enable_gqa": True}, inside)
    return out


@contextmanager
def _context(group: dist.ProcessGroup, length: int, device: torch.device) -> Iterator[None]:
    """`context_parallel` with the flash kernel, for a sequence of `length` tokens over the group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = DeviceMesh.from_group(group, device.type)
    buffers = [torch.arange(length, device=device).unsqueeze(0)]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1]), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


class _Public(torch.autograd.Function):
    """Keeps the inner graph: its backward must run inside the context, too."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], inside: partial[Any]) -> Tensor:
        query, key, value = (x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v))
        with torch.enable_grad(), inside():
            out = F.scaled_dot_product_attention(query, key, value, **how)
        ctx.graph, ctx.inside = (out, (query, key, value)), inside
        return out.detach().transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        out, leaves = ctx.graph
        with ctx.inside():
            found = torch.autograd.grad(out, leaves, gradients[0].transpose(1, 2).contiguous())
        return *(x.transpose(1, 2) for x in found), None, None
