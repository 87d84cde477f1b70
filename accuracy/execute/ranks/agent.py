"""All ranks of a run on this machine: torch's elastic agent starts their processes once, and anew when one ends. The
ranks find what they are to measure in a file, and tell of it in the run folder's journal, which this process follows;
nothing here listens on any interface."""

import logging
import math
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.errors import RanksEnded, one_line
from accuracy.execute import leftovers, start
from accuracy.execute.folder import make_writable
from accuracy.execute.plan import Planned
from accuracy.execute.ranks import journal, rank_loop, rendezvous
from accuracy.execute.ranks.process import HANDED, POLL_SECONDS, RAISED, Lead, kind_of, rank_process
from accuracy.execute.ranks.rank import Task
from accuracy.execute.worker import seconds_allowed, seconds_text

END_SECONDS = 60.0
"""For torch's agent to end; without memory it waits for a thread that never starts. Its processes are killed then."""
LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing.spawn", "torchelastic-events-null")
"""What torch's agent says of its processes, which the rows of the cases say, too."""
TRIES_WITHOUT_A_CASE = 2


def measure(
    task: Task, pending: Sequence[Planned], begin: Callable[[Case], None], lead: Lead = rank_loop.lead
) -> Generator[str, None, None]:
    """Yield the status of every pending case as it ends. Closing the generator ends the ranks, but in the body of
    `kept` once all is measured. Raises RanksEnded."""
    by_id = {each.case.id: each.case for each in pending}
    _, place = journal.lines(task.folder)
    with _agent_for(task, pending, lead) as agent:
        running = True
        while running and by_id:  # ranks that have measured everything may have threads that do not end
            time.sleep(POLL_SECONDS)  # no join: Ctrl-C in one makes Python 3.11 take the thread for ended
            running = agent.thread.is_alive()  # before the journal is read: its last lines count
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
        if not by_id:
            agent.rest()
    if by_id:
        make_writable("output_dir", task.folder)
        why = agent.ended or "the ranks did not find each other"
        raise RanksEnded(f"{why} before a case began, twice; what was measured stays")


_ends_kept: ExitStack | None = None
_kept_agent: "Agent | None" = None


@contextmanager
def kept() -> Iterator[None]:
    """In the body ranks that have measured a run wait for the next one, and measure it if they can: on a GPU a process
    takes seconds to come to its first case."""
    global _ends_kept, _kept_agent
    with ExitStack() as _ends_kept:
        try:
            yield
        finally:
            _ends_kept = _kept_agent = None


@contextmanager
def _agent_for(task: Task, pending: Sequence[Planned], lead: Lead) -> Iterator["Agent"]:
    """Yield an agent whose ranks measure this: the kept one if it can, else a new one."""
    global _kept_agent
    with ExitStack() if _ends_kept is None else nullcontext(_ends_kept) as ends:
        agent = _kept_agent
        try:
            if agent is not None and agent.can_measure(task, lead):
                agent.hand(task, pending)
            else:
                ends.close()
                agent = ends.enter_context(_started(task, pending, lead))
                _kept_agent = None if _ends_kept is None else agent
            yield agent
        finally:
            if agent is None or not agent.is_resting:
                _kept_agent = None
                ends.close()


@contextmanager
def _started(task: Task, pending: Sequence[Planned], lead: Lead) -> Iterator["Agent"]:
    """Start an agent; after the body end its ranks, and remove their folder."""
    temporary = tempfile.TemporaryDirectory(prefix="accuracy-", ignore_cleanup_errors=True)
    with temporary as rendezvous_folder, start.no_process_stays():
        agent = Agent(task, pending, Path(rendezvous_folder), lead)
        agent.thread.start()
        try:
            yield agent
        finally:
            agent.stopping = True
            agent.thread.join(END_SECONDS)


class Stopped(Exception):
    """Everything is measured, or nobody waits for more."""


class Agent(LocalElasticAgent):
    """torch's agent for one machine, which also notes how a rank ended."""

    def __init__(self, task: Task, pending: Sequence[Planned], rendezvous_folder: Path, lead: Lead) -> None:
        start.preload(start.OF_RANKS)
        plugins.store_functions(rendezvous_folder)
        self.rendezvous_folder, self.thread = rendezvous_folder, threading.Thread(target=self.run, daemon=True)
        self.kind, self.lead, self.stopping, self._lock = kind_of(task), lead, False, threading.Lock()
        spec = WorkerSpec(
            role="rank",
            local_world_size=max(task.sizes),
            entrypoint=rank_process,
            rdzv_handler=OneMachine(),
            max_restarts=10**6,  # `idle` and the tries of a case end a run
            monitor_interval=POLL_SECONDS,
        )
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(rendezvous_folder)), start_method="forkserver")
        self.number = 1  # of the file of what the ranks measure now, or next
        self._begin(task, pending)

    def _begin(self, task: Task, pending: Sequence[Planned]) -> None:
        self.task, self.ended, self.idle = task, "", 0
        self._deadline = math.inf  # of what the ranks do now
        self._late: Callable[[], str] = str  # what is said then
        journal.note(task.folder, "launch")
        self.journal_size = self._journal_size()
        self.pending: Sequence[Planned] | None = pending
        if pending:
            self.watch("launch", pending[0].case)

    def can_measure(self, task: Task, lead: Lead) -> bool:
        """Return whether the ranks are there and fit this task."""
        kind, own = kind_of(task), self.kind
        fits = max(kind.sizes) == max(own.sizes) and {*kind.sizes} <= {*own.sizes}  # groups of other sizes are not made
        fits = fits and kind._replace(sizes=own.sizes) == own and lead is self.lead
        return fits and self.thread.is_alive() and self.rendezvous_folder.is_dir()

    def hand(self, task: Task, pending: Sequence[Planned]) -> None:
        """Give this task to the ranks, which wait for one."""
        self._begin(task, pending)
        self._write(pending)

    def _write(self, pending: Sequence[Planned]) -> None:
        """Write the file from which the ranks learn what to measure now."""
        hidden = self.rendezvous_folder / f"hidden-{threading.get_ident()}"
        hidden.write_bytes(pickle.dumps((self.task, pending)))
        hidden.rename(self.rendezvous_folder / f"{HANDED}{self.number}")

    def rest(self) -> None:
        """Mark the task as finished: if a rank ends from now on, no case is blamed, and nothing is measured again."""
        with self._lock:
            with suppress(OSError):  # of a folder that a function removed
                self._write(())
            self.pending, self.number = None, self.number + 1
            self._deadline, self._late = math.inf, str

    @property
    def is_resting(self) -> bool:
        """Return whether everything is measured."""
        return self.pending is None

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
        with self._lock:
            if self.pending is not None:  # a function may have removed the file
                self._write(self.pending)
            worker_group.spec.args = self.kind, self.rendezvous_folder, self.lead, self.number
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
        """No rank ends by itself: one that has ended has failed, whatever its status. It is asked for here, before
        torch ends the others by a signal that would hide theirs."""
        if self.stopping:
            raise Stopped
        with self._lock:
            late = time.monotonic() > self._deadline
            if late and (text := self._late()):
                journal.note(self.task.folder, "final", text)
            context: Any = self._pcontext
            if late or any(process.exitcode is not None for process in context._pc.processes):
                if not self.is_resting:
                    self._note_ends()
                for path in self.rendezvous_folder.glob(f"{RAISED}*"):  # of a rank that had nothing to measure
                    path.unlink(missing_ok=True)
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
        before, self.journal_size = self.journal_size, self._journal_size()
        self.idle = self.idle + 1 if self.journal_size == before else 0
        if self.idle >= TRIES_WITHOUT_A_CASE:
            self._remaining_restarts = 0

    def _journal_size(self) -> int:
        return sum(word not in ("ended", "final") for word, _ in journal.lines(self.task.folder)[0])


class OneMachine(StaticTCPRendezvous):
    """The agent is the only one: it waits for nobody, and its store is in its own memory. Nothing listens."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, rank=0, world_size=1, run_id="accuracy", timeout=0)

    def next_rendezvous(self) -> RendezvousInfo:
        """See `RendezvousHandler`."""
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo(self.master_addr, self.master_port))
