"""Process groups of some of a group's ranks, made by those ranks alone: two-dimensional context parallelism."""

from functools import cache

import torch.distributed as dist
from torch.distributed import distributed_c10d

from accuracy.package import replaced


def rows_and_columns(group: dist.ProcessGroup, width: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Of the grid with `width` neighbours in a row, this rank's row and its column; members of `group` only."""
    members = dist.get_process_group_ranks(group)
    row, column = divmod(dist.get_rank(group), width)
    return subgroup(*members[row * width : (row + 1) * width]), subgroup(*members[column::width])


@cache
def subgroup(*ranks: int) -> dist.ProcessGroup:
    """The group of these ranks (of the default group), ascending, made by those alone: others are not there to help.

    `new_group(use_local_synchronization=True)` is made for that, but names the group after how many groups a process
    has seen, which differs here (the pool's ranks are members of different many), and splits an existing NCCL
    communicator, which needs all of its ranks. Both are put right for the time of the call.
    """
    name = f"accuracy-subgroup-{'-'.join(map(str, ranks))}"
    with (
        replaced.names(distributed_c10d, _hash_ranks_to_str=lambda ranks: name),
        replaced.names(dist.group.WORLD, bound_device_id=None),
    ):
        group: dist.ProcessGroup = dist.new_group(list(ranks), use_local_synchronization=True)
    return group
