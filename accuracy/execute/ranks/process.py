"""What a rank's process does that our agent started: it joins the other ranks, then measures each task that the agent
gives them."""

import gc
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accuracy.core import own_process, plugins
from accuracy.core.errors import located, traceback_of
from accuracy.execute import start
from accuracy.execute.plan import Planned
from accuracy.execute.ranks import journal, rank_loop, rendezvous
from accuracy.execute.ranks.rank import Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.results import storage
from accuracy.runtime import arithmetic

POLL_SECONDS = 0.05
RAISED = "raised."  # and its number: the file into which a rank writes what ended it
HANDED = "task."  # and a number: the file of a task and its pending cases
Lead = Callable[[Task, Ranks, Sequence[Planned]], Iterator[Any]]
"""A function that rank 0 runs: it measures the pending cases of a task, and yields after each. The other ranks run
`rank_loop.follow` meanwhile, which does what rank 0 tells them."""


class Kind(NamedTuple):
    """What running processes were started with; they can measure another task that needs the same. sizes: the numbers
    of ranks of its cases; the other fields are those of `Task`."""

    backend: str
    threads: int
    shared: tuple[int, ...]
    sizes: tuple[int, ...]


def kind_of(task: Task) -> Kind:
    """Return what the processes of a task are started with."""
    return Kind(task.backend, task.threads, (*task.shared,), (*task.sizes,))


def joined(rendezvous_folder: Path, kind: Kind, number: int) -> Ranks:
    """Return the other ranks. Where one is gone before all have met, this process ends because of it: that one says
    why."""
    try:
        return rendezvous.join_on_machine(rendezvous_folder, kind.backend, kind.sizes, kind.shared)
    except RuntimeError as error:
        if (path := rendezvous_folder / f"{HANDED}{number}").exists():
            folder = pickle.loads(path.read_bytes())[0].folder
            storage.write_traceback(folder, "ranks", traceback_of(error), int(os.environ["RANK"]))
        os._exit(journal.LOST)


def handed(rendezvous_folder: Path, number: int) -> Iterator[tuple[Task, Sequence[Planned]]]:
    """Yield tasks as they come, from that of this number on. It never ends: the agent kills the ranks, as one that has
    threads might not exit."""
    while True:
        path = rendezvous_folder / f"{HANDED}{number}"
        while not path.exists():
            time.sleep(POLL_SECONDS)
        yield pickle.loads(path.read_bytes())
        number += 1


def rank_process(kind: Kind, rendezvous_folder: Path, lead: Lead, number: int) -> None:
    """The life of a rank's process. number: of the task that it measures first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starting process's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    start.end_with_parent(journal.LOST)
    own_process.begin()
    if kind.shared:  # each rank compiles for itself: pools of compilers would be too many
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    gc.freeze()
    busy: Task | None = None
    try:
        arithmetic.make_exact()
        torch.set_num_threads(kind.threads)
        plugins.restore_functions(rendezvous_folder)
        ranks = joined(rendezvous_folder, kind, number)
        for busy, pending in handed(rendezvous_folder, number):
            with arithmetic.functions_with(busy.switches):
                if ranks.rank > 0:
                    rank_loop.follow(busy, ranks)
                else:
                    deque(lead(busy, ranks, pending), maxlen=0)
            busy = None
            gc.collect()  # the tensors of this task, before the next one
    except BaseException as error:
        own_process.end_if_forked()
        rank = int(os.environ["RANK"])
        with suppress(OSError):  # of a full disk: `measure` says so
            (rendezvous_folder / f"{RAISED}{rank}").write_text(located(error))
            if busy is not None:
                storage.write_traceback(busy.folder, "ranks", traceback_of(error), rank)
        os._exit(1)
