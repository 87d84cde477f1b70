"""A process group of some ranks of a case, made by those ranks alone: others of the pool are not there to help.

`new_group(use_local_synchronization=True)` is made for that, but names the group after how many groups a process has
seen, which differs here (the pool's ranks are members of different many), and splits an existing NCCL communicator,
which needs all of its ranks. Both are put right for the time of the call.
"""

from collections.abc import Sequence
from functools import cache

import torch.distributed as dist
from torch.distributed import distributed_c10d

from accuracy.package import replaced


def make(ranks: Sequence[int]) -> dist.ProcessGroup:
    """The group of these ranks (of the default group), which all call this, in ascending order."""
    return _make(tuple(sorted(ranks)))


@cache
def _make(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    name = f"accuracy-subgroup-{'-'.join(map(str, ranks))}"
    whole = dist.group.WORLD
    with (
        replaced.names(distributed_c10d, _hash_ranks_to_str=lambda ranks: name),
        replaced.names(whole, bound_device_id=None),
    ):
        group: dist.ProcessGroup = dist.new_group(list(ranks), use_local_synchronization=True)
    return group
