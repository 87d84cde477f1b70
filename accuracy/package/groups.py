"""Ranks of a group: groups of some of them, made by those alone."""

from functools import cache

import torch.distributed as dist
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
