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
from accuracy.execute.ranks.process import HANDED, POLL_SECONDS, RAISED, Given, Lead, rank_process
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
    """Yield the status of every pending case as it ends. Close the generator, so that no process stays; those that have
    measured everything may be `kept`. Raises RanksEnded."""
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


_kept: ExitStack | None = None
_last: "Agent | None" = None  # of the body of `kept`


@contextmanager
def kept() -> Iterator[None]:
    """In the body ranks that have measured everything stay, and measure the next run if that has as many of the same
    kind: on a GPU a process takes seconds to come to its first case."""
    global _kept, _last
    with ExitStack() as _kept:
        try:
            yield
        finally:
            _kept = _last = None


@contextmanager
def _agent_for(task: Task, pending: Sequence[Planned], lead: Lead) -> Iterator["Agent"]:
    """Yield the agent whose ranks measure this now: of those that were kept if they can, else of new ones."""
    global _last
    with ExitStack() if _kept is None else nullcontext(_kept) as ends:
        if (agent := _last) is not None and agent.can_measure(task, lead):
            agent.hand(task, pending)
        else:
            ends.close()
            agent = ends.enter_context(_started(task, pending, lead))
            _last = None if _kept is None else agent
        try:
            yield agent
        finally:
            if not agent.is_resting:
                _last = None
                ends.close()


@contextmanager
def _started(task: Task, pending: Sequence[Planned], lead: Lead) -> Iterator["Agent"]:
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
        self.first, self.lead, self.stopping = task, lead, False
        self._spec = WorkerSpec(
            role="rank",
            local_world_size=max(task.sizes),
            entrypoint=rank_process,
            rdzv_handler=OneMachine(),
            max_restarts=0,
            monitor_interval=POLL_SECONDS,
        )
        super().__init__(self._spec, DefaultLogsSpecs(log_dir=str(rendezvous_folder)), start_method="forkserver")
        self._begin(task, pending, 1)

    def _begin(self, task: Task, pending: Sequence[Planned], following: int) -> None:
        self.task, self.ended, self.idle = task, "", 0
        more = (journal.TRIES + 2) * len(pending) + TRIES_WITHOUT_A_CASE
        self._spec.max_restarts += more  # the difference is the number of restarts, by which the ranks find each other
        self._remaining_restarts += more
        self._deadline = math.inf  # of what the ranks do now
        self._late: Callable[[], str] = str  # what is said then
        journal.note(task.folder, "launch")
        self.journal_size = self._journal_size()
        self.given: Given = (task, pending), following  # to ranks that are started now
        if pending:
            self.watch("launch", pending[0].case)

    def can_measure(self, task: Task, lead: Lead) -> bool:
        """Return whether the ranks that were started for the first task are there, and can measure another one."""
        first, sizes = self.first, {*task.sizes}
        alike = (first.backend, first.threads, first.shared) == (task.backend, task.threads, task.shared)
        fits = alike and lead is self.lead and max(sizes) == max(first.sizes) and sizes <= {*first.sizes}
        return fits and self.thread.is_alive() and self.rendezvous_folder.is_dir()

    def hand(self, task: Task, pending: Sequence[Planned]) -> None:
        """Let the ranks, which rest, measure this."""
        number = self.given[1]
        hidden = self.rendezvous_folder / "to_hand"
        hidden.write_bytes(pickle.dumps((task, pending)))
        hidden.rename(self.rendezvous_folder / f"{HANDED}{number}")
        self._begin(task, pending, number + 1)

    def rest(self) -> None:
        """Learn that everything is measured: a rank that ends now ends no case."""
        self.given = None, self.given[1]
        self._deadline, self._late = math.inf, str

    @property
    def is_resting(self) -> bool:
        """Return whether everything is measured."""
        return self.given[0] is None

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
        worker_group.spec.args = self.first, self.rendezvous_folder, self.lead, self.given
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
            if not self.is_resting:
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
