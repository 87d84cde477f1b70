"""The life of a rank's process that an agent of ours started: it meets the others, and measures what the agent hands
to the ranks."""

import gc
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
HANDED = "task."  # and its number: the file of what the ranks measure now
Lead = Callable[[Task, Ranks, Sequence[Planned]], Iterator[Any]]
"""What the first rank does while the others follow."""
Given = tuple[tuple[Task, Sequence[Planned]] | None, int]
"""What ranks that are started measure at once, None: nothing; and the number of the file of what comes next."""


def joined(rendezvous_folder: Path, task: Task) -> Ranks:
    """Return the other ranks. Where one is gone before all have met, this process ends because of it: that one says
    why."""
    try:
        return rendezvous.join_on_machine(rendezvous_folder, task.backend, task.sizes, task.shared)
    except RuntimeError as error:
        storage.write_traceback(task.folder, "ranks", traceback_of(error), int(os.environ["RANK"]))
        os._exit(journal.LOST)


def handed(rendezvous_folder: Path, given: Given) -> Iterator[tuple[Task, Sequence[Planned]]]:
    """Yield what the ranks are to measure, as it comes. It does not end: the agent ends all ranks at once, as one that
    has a thread might not end by itself."""
    now, number = given
    if now is not None:
        yield now
    while True:
        path = rendezvous_folder / f"{HANDED}{number}"
        while not path.exists():
            time.sleep(POLL_SECONDS)
        yield pickle.loads(path.read_bytes())
        number += 1


def rank_process(first: Task, rendezvous_folder: Path, lead: Lead, given: Given) -> None:
    """The life of a rank's process. first: for which the ranks were started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starting process's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    start.end_with_parent(journal.LOST)
    own_process.begin()
    if first.shared:  # each rank compiles for itself: pools of compilers would be too many
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    gc.freeze()
    task = None if given[0] is None else given[0][0]
    try:
        arithmetic.make_exact()
        torch.set_num_threads(first.threads)
        plugins.restore_functions(rendezvous_folder)
        ranks = joined(rendezvous_folder, first)
        for task, pending in handed(rendezvous_folder, given):
            with arithmetic.functions_with(task.switches):
                if ranks.rank > 0:
                    rank_loop.follow(task, ranks)
                else:
                    deque(lead(task, ranks, pending), maxlen=0)
            task = None
            gc.collect()  # what the run had, before the next one is measured
    except BaseException as error:
        own_process.end_if_forked()
        rank = int(os.environ["RANK"])
        with suppress(OSError):  # of a full disk: `measure` says so
            if task is not None:
                (rendezvous_folder / f"{RAISED}{rank}").write_text(located(error))
                storage.write_traceback(task.folder, "ranks", traceback_of(error), rank)
        os._exit(1)
