"""What a package meets while it is measured, unedited: the case's kernel, names that are replaced in its modules, and
groups of some ranks.

A package's functions are told of tensors and a group only; `present` tells them of the kernel.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import ModuleType
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from accuracy.kernel.base import Kernel
from accuracy.kernel.flash_attn import FlashAttn
from accuracy.variant.base import Rank

_KERNEL: ContextVar[Kernel] = ContextVar("kernel of the case")
_DOCUMENTS: ContextVar[tuple[int, ...]] = ContextVar("borders of the packed documents")


@contextmanager
def of(rank: Rank) -> Iterator[Kernel]:
    """Inside, `present` is the rank's kernel and `documents` are those of the case."""
    token, other = _KERNEL.set(rank.kernel), _DOCUMENTS.set(rank.visibility.documents)
    try:
        yield rank.kernel
    finally:
        _KERNEL.reset(token)
        _DOCUMENTS.reset(other)


def present() -> Kernel:
    """The kernel. Backward functions that autograd may run in another thread ask in their forward."""
    return _KERNEL.get()


def documents() -> tuple[int, ...]:
    """Where packed documents begin and end, 0 and S included; empty: there is one."""
    return _DOCUMENTS.get()


def is_flash_attn(kernel: Kernel) -> bool:
    """Whether the case is measured with the flash-attn package itself, so that nothing stands in for it."""
    return isinstance(kernel, FlashAttn)


def deterministic() -> bool:
    """The value of a package's `deterministic`: the knob of kernel.flash_attn."""
    kernel = present()
    return isinstance(kernel, FlashAttn) and kernel.deterministic


def ring(
    package: str, function: str, q: Tensor, k: Tensor, v: Tensor, *,
    causal: bool, softmax_scale: float, group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out and lse of a package's function with the signature of ring-flash-attention's."""
    out, lse, _ = getattr(importlib.import_module(package), function)(
        q, k, v, softmax_scale=softmax_scale, causal=causal, return_attn_probs=True, group=group,
        deterministic=deterministic(),
    )  # fmt: skip
    return out, lse


names = partial(mock.patch.multiple, create=True)
"""names(module, NAME=value): attributes of a module, as given inside and as they were (or were not) afterwards."""


@contextmanager
def modules(stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """What `import` finds under these names, for the time of an import only: nobody else meets a stand-in."""
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def rows_and_columns(group: dist.ProcessGroup, width: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's row and its column in the grid with `width` neighbours in a row; members of `group` only."""
    members = dist.get_process_group_ranks(group)
    row, column = divmod(dist.get_rank(group), width)
    backend = dist.get_backend(group)
    return subgroup(backend, *members[row * width : (row + 1) * width]), subgroup(backend, *members[column::width])


@cache
def subgroup(backend: str, *ranks: int) -> dist.ProcessGroup:
    """The group of these ranks (of the default group), ascending, made by those alone: others are not there to help.

    `new_group(use_local_synchronization=True)` is made for that, but names the group after how many groups a process
    has seen, which differs here (the pool's ranks are members of different many), and splits an existing NCCL
    communicator, which needs all of its ranks. Both are put right for the time of the call.
    """
    name, world = f"accuracy-subgroup-{backend}-{'-'.join(map(str, ranks))}", dist.group.WORLD
    assert world is not None  # the ranks are members of it
    before, world.bound_device_id = world.bound_device_id, None
    try:
        with names(distributed_c10d, _hash_ranks_to_str=lambda ranks: name):
            group: dist.ProcessGroup = dist.new_group(list(ranks), backend=backend, use_local_synchronization=True)
    finally:
        world.bound_device_id = before
    return group
