"""The ranks of a processes world: started once, used by every case, rebuilt after a fault.

World sizes below the pool's are served by its first ranks, so a grid pays for starting processes once. A rank that
raises, dies, or does not answer in time ends its case with the reason; the others may wait for it in the middle of a
transfer, so all are stopped, and the next case finds new ones.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from accuracy.core.case import Case
from accuracy.execute.ranks.base import START_SECONDS, Failed, Job, Launcher, RankEnded, Worker, WorldFailed
from accuracy.execute.ranks.local import ThisMachine
from accuracy.runtime import device
from accuracy.simulate.program import Ran
from accuracy.world.base import Tensors

CLOSE_SECONDS = 5.0  # for a rank that has nothing to do to end
PEER_SECONDS = 1.0  # between a rank's complaint about another and the news of that one's end


@dataclass
class Pool:
    """sizes: the world sizes to come, in order; backend: gloo or nccl; timeout: seconds that a case may take."""

    sizes: tuple[int, ...]
    backend: str
    timeout: float
    launcher: Launcher = field(default_factory=ThisMachine)
    workers: list[Worker] = field(default_factory=list)

    def run(self, case: Case, shards: Sequence[Tensors]) -> Ran:
        """Run a case on its shards (q, k, v, dout) of every rank, results on the device of the shards.

        Raises WorldFailed, after which the pool is empty and starts anew with the next case.
        """
        try:
            if not self.workers:
                self._start()
            members = self.workers[: case.world_size]
            for worker, mine in zip(members, shards, strict=True):
                worker.send(Job(case, mine))
            answers = self._collect(members, self.timeout)
        except BaseException:
            self.kill()
            raise
        where = shards[0][0].device
        peaks = [answer.cost.peak_bytes for answer in answers]
        return Ran(
            results=[tuple(x if x is None else x.to(where) for x in answer.results) for answer in answers],
            cost=device.Cost(
                seconds=max(answer.cost.seconds for answer in answers),
                peak_bytes=None if None in peaks else max(peak for peak in peaks if peak is not None),
            ),
        )

    def close(self) -> None:
        """Let the workers end by themselves, then see to it."""
        for worker in self.workers:
            with contextlib.suppress(WorldFailed):
                worker.send(None)
        for worker in self.workers:
            wait(worker.signs, timeout=CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """No worker is left behind, whatever it is doing."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        if self.workers:
            self.launcher.clean()
        self.workers = []

    def _start(self) -> None:
        for worker in self.launcher.start(self.sizes, self.backend):
            self.workers.append(worker)
        self._collect(self.workers, START_SECONDS)

    def _collect(self, members: Sequence[Worker], seconds: float) -> list[Any]:
        """One answer of each member, in rank order. Raises WorldFailed at the first sign of trouble."""
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(members):
            waiting = [worker for worker in members if worker.rank not in answers]
            ready = wait(
                [sign for worker in waiting for sign in worker.signs],
                timeout=max(0.0, deadline - time.monotonic()),
            )
            if not ready:
                raise WorldFailed(f"no answer from {_names(waiting)} within {seconds:g} s")
            for worker in waiting:
                if any(sign in ready for sign in worker.signs):
                    answer = answers[worker.rank] = worker.receive()
                    if isinstance(answer, Failed):
                        raise _cause(worker, answer, [each for each in waiting if each is not worker])
        return [answers[worker.rank] for worker in members]


def _cause(worker: Worker, failed: Failed, others: Sequence[Worker]) -> WorldFailed:
    """A rank that has lost another says that it lost a connection: the other's end is the reason, if it shows soon."""
    deadline = time.monotonic() + PEER_SECONDS
    others = list(others)
    while others and (ready := wait([sign for each in others for sign in each.signs], deadline - time.monotonic())):
        for other in [each for each in others if any(sign in ready for sign in each.signs)]:
            others.remove(other)
            try:
                other.receive()
            except RankEnded as ended:
                return ended
    return WorldFailed(f"rank {worker.rank}: {failed.reason}")


def _names(workers: Sequence[Worker]) -> str:
    ranks = ", ".join(str(worker.rank) for worker in workers)
    return f"rank {ranks}" if len(workers) == 1 else f"ranks {ranks}"
