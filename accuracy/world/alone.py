"""The groups that a user's function finds: one of this process alone where nobody started ranks, and the default."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

INTERFACE = "GLOO_SOCKET_IFNAME"


@contextmanager
def group_of_one(device: str) -> Iterator[dist.ProcessGroup]:
    """This process alone. Where the caller has a default group, that one stays, and this is a further one; where there
    is none, the default group of the body is this."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" and dist.is_nccl_available() else "gloo"
    if dist.is_initialized():
        with _loopback():
            mine = dist.new_group([dist.get_rank()], backend=backend, use_local_synchronization=True)
        try:
            yield mine
        finally:
            dist.destroy_process_group(mine)
        return
    hook = sys.excepthook
    with _loopback():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    sys.excepthook = hook  # torch would print "[rank0]:" before every line, more often with every group
    try:
        yield dist.group.WORLD  # type: ignore[misc]
    finally:
        with suppress(ValueError, AssertionError):  # the function may have ended it
            dist.destroy_process_group()


@contextmanager
def default_group(group: dist.ProcessGroup | None) -> Iterator[None]:
    """In the body this is torch.distributed's default group, of which a function asks that takes none; None: as is."""
    before: Any = dist.group.WORLD
    if group is not None:
        dist.group.WORLD = group
    try:
        yield
    finally:
        if group is not None:
            dist.group.WORLD = before


@contextmanager
def _loopback() -> Iterator[None]:
    """gloo opens a socket: on the loopback interface, unless the environment says otherwise."""
    before = os.environ.get(INTERFACE)
    os.environ.setdefault(INTERFACE, "lo")
    try:
        yield
    finally:
        if before is None:
            del os.environ[INTERFACE]
