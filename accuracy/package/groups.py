"""Ranks of a group: groups of some of them, made by those alone, and tokens that they exchange."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from accuracy.package import substitutes


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
    name = f"accuracy-subgroup-{backend}-{'-'.join(map(str, ranks))}"
    with (
        substitutes.names(distributed_c10d, _hash_ranks_to_str=lambda ranks: name),
        substitutes.names(dist.group.WORLD, bound_device_id=None),
    ):
        group: dist.ProcessGroup = dist.new_group(list(ranks), backend=backend, use_local_synchronization=True)
    return group


class Exchange(torch.autograd.Function):
    """Gives each rank other tokens than those of its shard (B, S/W, ...): for its tokens of `have` those of `wanted`.
    Gradients go the other way; nothing is added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, have: Any, wanted: Any, group: dist.ProcessGroup) -> Tensor:
        """See `exchanged`."""
        ctx.have, ctx.wanted, ctx.group = have, wanted, group
        return exchanged(x, have, wanted, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Send gradients back."""
        return exchanged(gradients[0], ctx.wanted, ctx.have, ctx.group), None, None, None


def exchanged(x: Tensor, have: list[list[int]], wanted: list[list[int]], group: dist.ProcessGroup) -> Tensor:
    """Return this rank's tokens of `wanted`, out of x (B, S/W, ...), whose tokens on each rank are those of `have`."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in have]
    dist.all_gather(parts, x.contiguous(), group=group)
    gathered = torch.cat(parts, 1)
    place = torch.empty(gathered.shape[1], dtype=torch.int64)
    place[[token for each in have for token in each]] = torch.arange(len(place))
    return gathered[:, place[wanted[dist.get_rank(group)]].to(x.device)]
