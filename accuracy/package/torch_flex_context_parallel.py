"""torch's context parallelism of flex_attention: keys and values gathered, dk and dv reduce-scattered in their dtype.

`flex_cp_allgather` and `_create_cp_block_mask`, as `_ContextParallel` with AttentionType.FLEX uses them (torchtitan).
It runs flex_attention whatever the kernel of the case: compiled on CUDA; on a CPU torch's unfused form, whose refusal
of gradients there is lifted. Balanced shards are zigzag, others contiguous.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from accuracy.core.case import Case
from accuracy.kernel.flex_attention import compiled
from accuracy.package import installed, substitutes

DISTRIBUTION = "torch"
PLACE = "torch.distributed.tensor.experimental._context_parallel"
KERNELS = {"cuda": "flex_attention", "cpu": "eager"}
BLOCK = 128  # of the block mask: a rank's tokens are a multiple of it


def unsupported(case: Case) -> str | None:
    """A torch without it, another kernel than the one that it runs, and lengths that its block mask does not take."""
    if _module() is None:
        return f"torch {torch.__version__} has no context parallelism of flex_attention that is known here; use 2.11"
    kernel, tokens = KERNELS[case.device], case.problem.seqlen // case.world_size
    if case.kernel.name != kernel:
        return f"flex_attention's context parallelism runs flex_attention: use kernel={kernel}, which is beside it"
    if tokens % BLOCK:
        return f"its block mask takes multiples of {BLOCK} tokens a rank, not {tokens}: change problem.seqlen"
    if case.variant.sharding == "zigzag" and not case.problem.causal:
        return installed.UNBALANCED
    return None


@cache
def _module() -> ModuleType | None:
    try:
        module = importlib.import_module(PLACE)
        known = hasattr(module._attention, "_create_cp_block_mask") and hasattr(module, "flex_cp_allgather")
    except (ImportError, AttributeError):
        return None
    return module if known and hasattr(flex, "AuxRequest") else None


def _attend(
    balance: bool, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """out (B, S/W, H, D), lse (B, H, S/W)."""
    module: Any = _module()
    query, key, value = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    with _here(q.device.type, balance):
        keys, values = module.flex_cp_allgather(key, value, 2, group.group_name)
        attend: Any = compiled() if q.is_cuda else flex.flex_attention
        out, aux = attend(
            query, keys, values, scale=softmax_scale, enable_gqa=q.shape[2] != k.shape[2],
            block_mask=_mask(group, keys.shape[2], q.device.type, causal), return_aux=flex.AuxRequest(lse=True),
        )  # fmt: skip
    return out.transpose(1, 2), aux.lse


contiguous, balanced = partial(_attend, False), partial(_attend, True)


def _mask(group: dist.ProcessGroup, length: int, device: str, causal: bool) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return row >= key if causal else row >= 0

    mesh = DeviceMesh.from_group(group, device)
    module: Any = _module()
    return module._attention._create_cp_block_mask(seen, 1, 1, length, length, mesh)


@contextmanager
def _here(device: str, balance: bool) -> Iterator[None]:
    """Shards in the variant's order; on a CPU nothing compiled, and gradients."""
    module: Any = _module()
    with ExitStack() as stack:
        stack.enter_context(substitutes.names(module._cp_options, enable_load_balance=balance))
        if device == "cpu":
            plain = {"_compiled_create_block_mask": flex.create_block_mask}
            stack.enter_context(substitutes.names(module._attention, **plain))
            stack.enter_context(substitutes.names(flex, _validate_device=lambda *tensors: None))
        yield
