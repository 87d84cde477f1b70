"""The caller's own processes as ranks of a run: those of torchrun, or of a process group that the caller has made.

Each of them calls the same public function. The first one measures and compares, the others take part, as in a run that
a launcher started (`rank_loop`); then every process gets the first one's tables. Worlds that are smaller than the group
are its first ranks, in groups that are made here and destroyed at the end.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from accuracy.core.errors import ConfigError, RanksEnded
from accuracy.execute.ranks import messages, rendezvous
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.start import launch
from accuracy.world import shared_gpu

if TYPE_CHECKING:
    import pandas as pd

PATIENCE_SECONDS = 120.0
"""For the other processes to call the same function: they may still compile or read what this one has already."""

_out_of_step = ""


def callers_group(group: dist.ProcessGroup | None, device: str) -> dist.ProcessGroup | None:
    """Return the group that was given, else torch.distributed's default group, else that of torchrun's processes, which
    is joined here; None where this process is alone."""
    started = launch(os.environ)
    if group is None and started is not None and not dist.is_initialized():
        if device == "cuda":
            rendezvous.join_as_default(started)
        else:
            dist.init_process_group("gloo")
    if not dist.is_available() or not dist.is_initialized():
        return None
    found = group or dist.group.WORLD
    return None if found is None or dist.get_world_size(found) == 1 else found


def with_own_gpu(group: dist.ProcessGroup) -> int:
    """Return how many of the group's ranks have a device each: all, unless its backend is that of a shared one."""
    return 1 if dist.get_backend(group) == shared_gpu.NAME else group.size()


@contextmanager
def as_ranks(
    group: dist.ProcessGroup, sizes: Sequence[int], device: str, plan: str, shared: Sequence[int] = ()
) -> Iterator[Ranks]:
    """The processes of a group as ranks, in worlds of these sizes.

    Args:
        group: of the caller, all of whose processes come here.
        sizes: the numbers of ranks of the cases to come, none above the group's.
        device: `cpu` or `cuda`, where the cases' tensors are.
        plan: a text that is the same on all processes that measure the same cases.
        shared: the sizes whose ranks share a GPU.

    Raises:
        ConfigError: where others do not come within `PATIENCE_SECONDS`, or measure other cases.
        RanksEnded: where the processes were left in different places by an earlier call.
    """
    if _out_of_step:
        raise RanksEnded(f"{_out_of_step}; the processes are out of step since, start them anew")
    members, backend = dist.get_process_group_ranks(group), "nccl" if device == "cuda" else "gloo"
    try:
        plans = messages.share(plan, group, PATIENCE_SECONDS)
    except messages.Stuck:
        raise ConfigError(
            f"{len(members)} processes are in the group, and not all of them called this within"
            f" {PATIENCE_SECONDS:.0f} s; call it on each of them, or give world_size=1"
        ) from None
    if len({*plans}) > 1:
        raise ConfigError("the processes of the group ask for different cases; let all of them give the same arguments")
    rank, made = dist.get_rank(group), list[dist.ProcessGroup]()
    only_members = group is not dist.group.WORLD  # then others do not come here, and torch asks members alone

    def group_of(size: int, backend: str) -> dist.ProcessGroup:
        # each process makes as many groups as the others: torch derives their names from the number
        ranks = members[:size] if rank < size or not only_members else [members[rank]]
        new: dist.ProcessGroup = dist.new_group(
            ranks, messages.FOREVER, backend, use_local_synchronization=only_members
        )
        made.append(new)
        return new

    try:
        control = group_of(len(members), "gloo")
        backends = {size: shared_gpu.NAME if size in shared else backend for size in sorted({*sizes})}
        yield Ranks(rank, len(members), control, {size: group_of(size, each) for size, each in backends.items()})
    finally:
        for each in made:
            if each is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(each)


def leave(reason: str) -> RanksEnded:
    """Return the error of a case after which the processes are in different places: no later call can use them."""
    global _out_of_step
    _out_of_step = reason
    return RanksEnded(f"{reason}; the other processes still wait for this one")


def share_folder(folder: Path, ranks: Ranks) -> Path:
    """Return the first rank's folder where this process sees it too, else its own."""
    first = Path(messages.share(str(folder), ranks.control)[0])
    return first if first.is_dir() else folder


def share_tables(tables: "Sequence[pd.DataFrame]", ranks: Ranks) -> "list[pd.DataFrame]":
    """Return the first rank's tables on every rank."""
    import pyarrow as pa  # with the first tables: a rank's first case does not wait for it

    written = io.BytesIO()
    for each in tables if ranks.rank == 0 else ():
        table = pa.Table.from_pandas(each, preserve_index=False)
        with pa.ipc.new_stream(written, table.schema) as stream:
            stream.write_table(table)
    content = pa.BufferReader(messages.broadcast(written.getvalue(), ranks.control))
    found = [pa.ipc.open_stream(content).read_all().to_pandas() for _ in tables]
    return list(tables) if ranks.rank == 0 else found
