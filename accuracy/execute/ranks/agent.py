"""All ranks of a run on this machine: torch's elastic agent starts their processes once, and anew when one ends. The
ranks tell of their cases in the run folder's journal, which this process follows; nothing here listens on any
interface."""

import gc
import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from accuracy.core import own_process, plugins
from accuracy.core.case import Case
from accuracy.core.errors import RanksEnded, located, one_line, traceback_of
from accuracy.execute import leftovers, start
from accuracy.execute.folder import make_writable
from accuracy.execute.plan import Planned
from accuracy.execute.ranks import journal, rank_loop, rendezvous
from accuracy.execute.ranks.rank import Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.worker import seconds_allowed, seconds_text
from accuracy.results import storage
from accuracy.runtime import arithmetic

POLL_SECONDS = 0.05
END_SECONDS = 60.0
"""For torch's agent to end; without memory it waits for a thread that never starts. Its processes are killed then."""
LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing.spawn", "torchelastic-events-null")
"""What torch's agent says of its processes, which the rows of the cases say, too."""
TRIES_WITHOUT_A_CASE = 2
RAISED = "raised."  # and its number: the file into which a rank writes what ended it


Lead = Callable[[Task, Ranks, Sequence[Planned]], Iterator[Any]]
"""What the first rank does while the others follow."""


def measure(
    task: Task, pending: Sequence[Planned], begin: Callable[[Case], None], lead: Lead = rank_loop.lead
) -> Generator[str, None, None]:
    """Yield the status of every pending case as it ends. Close the generator, so that no process stays. Raises
    RanksEnded."""
    by_id = {each.case.id: each.case for each in pending}
    _, place = journal.lines(task.folder)
    temporary = tempfile.TemporaryDirectory(prefix="accuracy-", ignore_cleanup_errors=True)
    with temporary as rendezvous_folder, start.no_process_stays():
        agent = Agent(task, pending, Path(rendezvous_folder), lead)
        agent.watch("launch", pending[0].case)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        try:
            running = True
            while running and by_id:  # ranks that have measured everything may have threads that do not end
                thread.join(POLL_SECONDS)
                running = thread.is_alive()  # before the journal is read: its last lines count
                found, place = journal.lines(task.folder, place)
                for word, case_id in found:
                    if case_id not in by_id:
                        continue
                    agent.watch(word, by_id[case_id])
                    if word == "began":
                        begin(by_id[case_id])
                    elif word not in journal.STAGES:
                        by_id.pop(case_id)
                        yield word
        finally:
            agent.stopping = True
            thread.join(END_SECONDS)
    if by_id:
        make_writable("output_dir", task.folder)
        why = agent.ended or "the ranks did not find each other"
        raise RanksEnded(f"{why} before a case began, twice; what was measured stays")


class Stopped(Exception):
    """Everything is measured, or nobody waits for more."""


class Agent(LocalElasticAgent):
    """torch's agent for one machine, which also notes how a rank ended."""

    def __init__(self, task: Task, pending: Sequence[Planned], rendezvous_folder: Path, lead: Lead) -> None:
        start.preload(start.OF_RANKS)
        plugins.store_functions(rendezvous_folder)
        self.rendezvous_folder = rendezvous_folder
        self.task, self.stopping, self.ended, self.idle, self.journal_size = task, False, "", 0, 0
        self._deadline = math.inf  # of what the ranks do now
        self._late: Callable[[], str] = str  # what is said then
        spec = WorkerSpec(
            role="rank",
            local_world_size=max(task.sizes),
            entrypoint=rank_process,
            args=(task, pending, rendezvous_folder, lead),
            rdzv_handler=OneMachine(),
            max_restarts=(journal.TRIES + 2) * len(pending) + TRIES_WITHOUT_A_CASE,
            monitor_interval=POLL_SECONDS,
        )
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(rendezvous_folder)), start_method="forkserver")

    def run(self, role: str = "default") -> RunResult:
        """See `LocalElasticAgent`; torch's logs of processes say nothing meanwhile: rows say what happened."""
        loggers = [logging.getLogger(name) for name in LOGGERS]
        before = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            return super().run(role)
        except Stopped:
            return RunResult(WorkerState.STOPPED)
        except Exception as error:  # no process was started that could tell
            self.ended = self.ended or f"the ranks could not be started ({one_line(error)})"
            raise
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)

    def watch(self, stage: str, case: Case) -> None:
        """Learn from the journal what the ranks do now, and how long they may."""
        if stage == "ranks":
            seconds, self._late = self.task.seconds, partial(self._no_answer, case.world_size)
        elif stage in journal.STAGES:
            seconds = seconds_allowed(case, self.task.case_seconds)
            self._late = partial("took longer than {}".format, seconds_text(case, self.task.case_seconds))
        else:
            seconds, self._late = rendezvous.START_SECONDS, str
        self._deadline = time.monotonic() + seconds

    def _no_answer(self, size: int) -> str:
        context: Any = self._pcontext
        processes = [process.pid for process in context._pc.processes[:size]]
        return journal.no_answer(dict(enumerate(processes)), self.task.seconds)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        if self._deadline < math.inf:
            self._deadline, self._late = time.monotonic() + 2 * rendezvous.START_SECONDS, str
        with start.starting():
            started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 10) -> None:
        """A rank has nothing to put in order, and may be stopped: no other signal ends it for sure."""
        context: Any = self._pcontext
        ended = [*context.pids().values()] if context else []
        super()._shutdown(signal.SIGKILL)  # torch 2.11 has no timeout here
        leftovers.remove_shared_memory(ended)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """A rank ends only once all have measured everything, so whoever ends before has failed, with whatever status.
        It is asked for here, before torch ends the others by a signal that would hide theirs."""
        if self.stopping:
            raise Stopped
        late = time.monotonic() > self._deadline
        if late and (text := self._late()):
            journal.note(self.task.folder, "final", text)
        context: Any = self._pcontext
        if late or any(process.exitcode is not None for process in context._pc.processes):
            self._note_ends()
            return RunResult(WorkerState.FAILED)
        return super()._monitor_workers(worker_group)

    def _note_ends(self) -> None:
        context: Any = self._pcontext
        codes = [process.exitcode for process in context._pc.processes]
        ended = [(rank, code) for rank, code in enumerate(codes) if code is not None]
        texts = []
        for rank, code in ended:
            raised, text = self.rendezvous_folder / f"{RAISED}{rank}", ""
            with suppress(OSError):
                text = raised.read_text()
                raised.unlink()
            texts.append(journal.note_end(self.task.folder, rank, code, text))
        self.ended = " and ".join(filter(None, texts)) or self.ended
        size = sum(word not in ("ended", "final") for word, _ in journal.lines(self.task.folder)[0])
        self.idle = self.idle + 1 if size == self.journal_size else 0
        self.journal_size = size
        if self.idle >= TRIES_WITHOUT_A_CASE:
            self._remaining_restarts = 0


class OneMachine(StaticTCPRendezvous):
    """The agent is the only one: it waits for nobody, and its store is in its own memory. Nothing listens."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, rank=0, world_size=1, run_id="accuracy", timeout=0)

    def next_rendezvous(self) -> RendezvousInfo:
        """See `RendezvousHandler`."""
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo(self.master_addr, self.master_port))


def joined(rendezvous_folder: Path, task: Task) -> Ranks:
    """Return the other ranks. Where one is gone before all have met, this process ends because of it: that one says
    why."""
    try:
        return rendezvous.join_on_machine(rendezvous_folder, task.backend, task.sizes, task.shared)
    except RuntimeError as error:
        storage.write_traceback(task.folder, "ranks", traceback_of(error), int(os.environ["RANK"]))
        os._exit(journal.LOST)


def rank_process(task: Task, pending: Sequence[Planned], rendezvous_folder: Path, lead: Lead) -> None:
    """The life of a rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starting process's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    start.end_with_parent(journal.LOST)
    own_process.begin()
    if task.shared:  # each rank compiles for itself: pools of compilers would be too many
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    gc.freeze()
    try:
        arithmetic.make_exact()
        torch.set_num_threads(task.threads)
        plugins.restore_functions(rendezvous_folder)
        ranks = joined(rendezvous_folder, task)
        with arithmetic.functions_with(task.switches):
            if ranks.rank > 0:
                rank_loop.follow(task, ranks)
            else:
                deque(lead(task, ranks, pending), maxlen=0)
        threading.Event().wait()  # `measure` ends all ranks at once; by itself one with a thread might not end
    except BaseException as error:
        own_process.end_if_forked()
        rank = int(os.environ["RANK"])
        with suppress(OSError):  # of a full disk: `measure` says so
            (rendezvous_folder / f"{RAISED}{rank}").write_text(located(error))
            storage.write_traceback(task.folder, "ranks", traceback_of(error), rank)
        os._exit(1)
