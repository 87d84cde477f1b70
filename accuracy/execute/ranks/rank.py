"""One rank of a run, and what it does with a case: it draws its inputs, measures its part, tells the others of it.

An exception is told to all ranks, and the case is a failed row. Where the others are stuck in the middle of a transfer,
the rank ends instead, and its launcher starts all of them anew.
"""

import faulthandler
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from accuracy.core.case import Case, digest
from accuracy.core.errors import NotShared, located, traceback_of
from accuracy.core.own_process import end_if_forked, is_one, raised_by_functions
from accuracy.execute.ranks import caller, journal, messages
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.worker import device_works
from accuracy.inputs import drawing
from accuracy.measurement import reruns
from accuracy.measurement.observe import repeats_of
from accuracy.measurement.pipeline import Pipeline
from accuracy.results import storage
from accuracy.runtime import arithmetic, device
from accuracy.runtime.changes import Changes
from accuracy.runtime.sharding import sharding_of
from accuracy.simulate.program import Mode, Ran, build_kernel, rank_program
from accuracy.variant.base import schedule_of
from accuracy.world.base import Results, Tensors
from accuracy.world.processes import ProcessesWorld, run_rank
from accuracy.world.simulated import RankFailed

PATIENCE_SECONDS = 3.0  # of a rank with an exception, for the others to hear of it
LATE_SECONDS = 0.5
"""That a launched rank which is late stays: the first two note it meanwhile, and each says where it is."""
PLAIN, POISON, FUTURE, PREPARE, END = range(5)
MODES = (Mode(), Mode(poison=True), Mode(future=True))
"""What the first three ask for; the first, where the case says so, with every rank's repeats."""
Message = dict[str, Any]
"""What all ranks hear of one rank's part in a case: its error, or its cost and what its tensors are like; nothing where
it had none, or where another rank's error ended it."""


By = Literal["agent", "launcher", "caller"]
"""Who started a run's ranks: our agent, which sees how one ends and which one is late; torchrun, where the ranks see to
that themselves; the caller, whose own processes they are: they are not ended from here."""


class OtherRankFailed(RuntimeError):
    """This rank's forward returned, and another one's raised."""


@dataclass(frozen=True)
class Task:
    """What the ranks of a run measure, and how. cases: the same on every rank; pipeline: the first rank's, which
    simulates the cases of a simulated world; sizes: the world sizes to come; seconds: that real ranks may take for a
    case; threads: of the processor, in each rank that is started here; case_seconds: as configured; switches: of the
    arithmetic that users' functions run with, None: exact; by: who started the ranks; shared: the sizes whose ranks
    share a GPU."""

    cases: Sequence[Case]
    pipeline: Pipeline
    folder: Path
    backend: str
    sizes: Sequence[int]
    seconds: float
    threads: int
    case_seconds: float = math.inf
    switches: arithmetic.Switches | None = None
    by: By = "agent"
    shared: Sequence[int] = ()

    def end(self, reason: str) -> NoReturn:
        """This rank cannot go on: its launcher starts all ranks anew, or the caller hears of it. Raises RanksEnded."""
        if self.by == "caller":
            raise caller.leave(reason)
        os._exit(journal.LOST)

    @property
    def digest(self) -> str:
        """Return the digest of the ids of all cases, in their order."""
        return digest({"cases": [case.id for case in self.cases]})


class Rank:
    """One rank and the case in its hands."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks, self.pipeline = task, ranks, task.pipeline
        self._simulate, self.pipeline.run_ranks = self.pipeline.run_ranks, self.run_all
        self._changes, self._changed = Changes(), set[str]()
        self._threads = torch.get_num_threads()
        self.number = -1  # of the case
        self._drawn_for: object = None
        self._agreed = self._all_come = False
        self._shards: Tensors | Exception = ()

    @property
    def case(self) -> Case:
        """Return the case."""
        return self.task.cases[self.number]

    def changed(self) -> list[str]:
        """Put back what the case changed on any rank of ours, as far as that can be; return it."""
        self._changed.update(self._changes.names() if is_one() else ())
        self._changes.undo()
        return sorted(self._changed)

    def tell(self, number: int = -1, what: int = END) -> tuple[int, int]:
        """Return the first rank's case and what to do with it, on every rank."""
        try:
            number, what = json.loads(messages.share(json.dumps([number, what]), self.ranks.control)[0])
        except RuntimeError:
            self._end_with_another()
        return number, what

    def _end_with_another(self) -> NoReturn:
        """End this rank because another one is gone: whoever started that one says how it ended. Launched ranks note
        it, unless it is known why the other ended itself."""
        reason = "another rank is gone"
        if self.task.by == "launcher" and journal.read(self.task.folder).reason(self.case.id) is None:
            self._note("ended", reason)
        self.task.end(reason)

    def _note(self, word: str, text: str) -> None:
        """On the first two of launched ranks, one of which may be what is gone: what the next launch is to know of the
        case."""
        if self.ranks.rank < 2:
            journal.note(self.task.folder, word, text)
            self._say(text)

    def _say(self, text: str) -> None:
        if self.task.by == "launcher":
            print(f"accuracy: {text}; what was measured stays, and the same command goes on", file=sys.stderr)

    @contextmanager
    def limited(self, seconds: float, reason: str) -> Iterator[None]:
        """Let a launched rank whose body takes longer note the reason, say where it is, and end."""

        def end() -> None:
            self._note("final", reason)
            faulthandler.dump_traceback(file=2)
            time.sleep(LATE_SECONDS)
            os._exit(journal.LOST)

        if self.task.by != "launcher":
            yield
            return
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def prepare(self, number: int) -> None:
        """On the first rank: let the others draw the case's inputs while the reference is computed."""
        self.number = number
        self.release()
        if self.case.world == "processes":
            self.tell(number, PREPARE)

    def release(self) -> None:
        """Leave the device's memory that tensors have no more to the ranks that share the device."""
        if self.task.shared:
            torch.cuda.empty_cache()

    def draw(self, number: int) -> None:
        """q, k, v, dout of this rank, kept for the cases that have the same; an exception waits for the case to run."""
        self.number = number
        case = self.case
        key = case.inputs, case.problem, case.seed, case.said_dtype, sharding_of(case), case.world_size
        if self.ranks.rank >= case.world_size:
            self._drawn_for, self._shards = None, ()
            return
        if self._drawn_for != key:
            self._drawn_for, self._shards = key, ()
            try:
                self._shards = drawing.draw_shard(case, self.ranks.rank)
            except Exception as error:
                self._shards = error
        with suppress(Exception):  # which the case will say
            build_kernel(case)  # imports what it takes before the ranks meet: no rank waits for it in its time

    def run_all(self, case: Case, shards: Sequence[Tensors], mode: Mode) -> Ran:
        """On the first rank: the case in hand on all ranks; as `RunRanks`. Raises RankFailed."""
        if case.world != "processes":
            return self._simulate(case, shards, mode)
        what = MODES.index(replace(mode, repeat=0))
        self.tell(self.number, what)  # all have drawn and imported then
        journal.note(self.task.folder, "ranks", self.case.id)
        with arithmetic.computing_with(self._threads, "cpu"):  # as all ranks, whatever the comparison takes
            every, results = self.take_part(what, shards[0])
        journal.note(self.task.folder, "alone", self.case.id)
        self._changed.update(*(part["changed"] for part in every))
        for rank, part in enumerate(every):
            if "error" in part:
                raise RankFailed(f"rank {rank}: {part['error']}")
        for part in every:
            if "not_shared" in part:
                raise NotShared(part["not_shared"])
        peaks = [part["peak_bytes"] for part in every]
        seconds = max(part["seconds"] for part in every)
        repeated = [part["repeats"] for part in every]
        return Ran(results, device.Cost(seconds, None if None in peaks else max(peaks)), repeated)

    def take_part(self, what: int, given: Tensors | None = None) -> tuple[list[Message], list[Results]]:
        """Return what every rank tells of its part; on the first, which is given its shards, also all results."""
        results: Results = ()
        part: Message = {}
        self._agreed = self._all_come = False
        with self.limited(self.task.seconds, f"{journal.NO_ANSWER} within {self.task.seconds:g} s"):
            try:
                results, part = self._run(what, given)
            except OtherRankFailed:
                pass  # that rank tells its error
            except NotShared as error:
                part = {"not_shared": str(error)}
            except raised_by_functions() as error:
                part = {"error": located(error)[:500]}
                text = traceback_of(error)
                storage.write_traceback(self.task.folder, self.task.cases[self.number].id, text, self.ranks.rank)
            end_if_forked()
            part["changed"] = self.changed()
            patience = PATIENCE_SECONDS if "error" in part else None
            try:
                if patience and not device_works(self.case.device):
                    raise messages.Stuck
                if not self._agreed:
                    self._agree(False, patience)
                return self._exchange(results, part, None if self._all_come else patience)
            except messages.Stuck:  # after patience
                reason = f"rank {self.ranks.rank}: {part['error']}"
                journal.note(self.task.folder, "final", reason)
                self._say(reason)
                self.task.end(reason)
            except RuntimeError:
                self._end_with_another()

    def _run(self, what: int, given: Tensors | None) -> tuple[Results, Message]:
        case, rank, guarded = self.case, self.ranks.rank, None
        if rank >= case.world_size:
            self._agree()
            return (), {}
        if what == PLAIN and schedule_of(case.variant.forward).load(case):
            self._changes = Changes()
        shards = self._shards if given is None else given
        if isinstance(shards, Exception):
            raise shards
        if what == FUTURE and given is None:
            shards = reruns.other_future(case, rank, shards)
        if what == POISON and given is None:
            guarded = reruns.Guarded(shards)
            shards = guarded.tensors
        place: list[Any] = [None] * case.world_size
        place[rank] = shards
        kernel = build_kernel(case)
        program = rank_program(case, kernel, place)
        world = ProcessesWorld(rank, case.world_size, self.ranks.data[case.world_size])
        with device.measured(case.device) as cost, device.poisoned(what == POISON):
            results = run_rank(rank_program(case, kernel, place, self._agree), world)
        if case.observers:  # a function may return a buffer that it fills again
            kept, results = results, reruns.copies(results)
            if what == PLAIN and case.world_size == 1 and repeats_of(case):
                reruns.check_other_calls(case, shards, kept, results, world)
        if guarded is not None:
            guarded.check(rank)
        again = ([run_rank(program, world)] for _ in range(repeats_of(case) if what == PLAIN else 0))
        (repeats,) = reruns.repeated([results], again)
        return results, {**vars(cost), "tensors": messages.describe(results), "repeats": repeats}

    def _agree(self, fine: bool = True, patience: float | None = None) -> None:
        """Let all ranks hear of one whose forward raised: the others would wait for it in their backward. Every rank
        calls it once in a run. patience: as `messages.share`. Raises OtherRankFailed on ranks whose own forward
        returned, and what `messages.share` raises."""
        self._agreed = True
        if self.case.world_size == 1:
            self._all_come = True
            return
        self._all_come = str(False) in messages.share(str(fine), self.ranks.control, patience)
        if fine and self._all_come:
            raise OtherRankFailed

    def _exchange(self, results: Results, part: Message, patience: float | None) -> tuple[list[Message], list[Results]]:
        size = self.case.world_size
        every = [json.loads(text) for text in messages.share(json.dumps(part), self.ranks.control, patience)[:size]]
        if self.ranks.rank >= size or any("tensors" not in each for each in every):
            return every, []
        return every, messages.collect(results, [each["tensors"] for each in every], self.ranks.data[size])
