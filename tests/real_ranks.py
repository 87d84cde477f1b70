"""Real ranks that stay and run one case after another for a test, which gets their tensors."""

import pickle
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from accuracy.core.case import Case
from accuracy.execute.ranks.agent import Agent
from accuracy.execute.ranks.rank import END, Rank, Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.inputs.drawing import draw_shard
from accuracy.simulate.program import PLAIN, Mode, Ran
from accuracy.world.base import Tensors
from tests.measuring import pipeline


@dataclass(frozen=True)
class Inbox:
    """The cases that a test has asked for, by number; waits for one that is to come."""

    folder: Path

    def __getitem__(self, number: int) -> Case | None:
        return awaited(self.folder / f"case-{number}")


def awaited(path: Path, alive: "threading.Thread | None" = None) -> Any:
    """The content of a file that another process writes."""
    while not path.exists():
        assert alive is None or alive.is_alive(), "the ranks have ended"
        time.sleep(0.001)
    return pickle.loads(path.read_bytes())


def put(path: Path, content: object) -> None:
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(pickle.dumps(content))
    hidden.rename(path)


def serve(task: Task, ranks: Ranks, pending: Sequence[Any]) -> Iterator[None]:
    """What the first rank does: a case's results, or why there are none, into a file."""
    rank = Rank(task, ranks)
    number = 0
    while (case := task.cases[number]) is not None:
        rank.prepare(number)
        try:
            ran = rank.run_all(case, [draw_shard(case, 0)], PLAIN)
            answer: Any = Ran([tuple(x if x is None else x.cpu() for x in each) for each in ran.results], ran.cost)
        except Exception as error:
            answer = error
        put(task.folder / f"answer-{number}", answer)
        number += 1
        yield
    rank.tell(0, END)


class RealRanks:
    """sizes: of the worlds to come; backend: gloo or nccl; timeout: seconds that a case may take; shared: the sizes
    whose ranks share a GPU."""

    def __init__(self, sizes: Sequence[int], backend: str, timeout: float, shared: Sequence[int] = ()) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="accuracy-test-")
        self.path = Path(self.folder.name)
        self.number, self.sizes = 0, tuple(sizes)
        cases: Any = Inbox(self.path)
        threads = torch.get_num_threads()
        task = Task(cases, pipeline(), self.path, backend, sizes, timeout, threads, shared=shared)
        self.agent = Agent(task, [], self.path, serve)
        self.agent.thread.start()

    def run(self, case: Case, shards: Sequence[Tensors], mode: Mode = PLAIN) -> Ran:
        """The ranks draw the inputs themselves: of `shards`, only the device counts."""
        put(self.path / f"case-{self.number}", replace(case, world="processes"))
        answer = awaited(self.path / f"answer-{self.number}", self.agent.thread)
        self.number += 1
        if isinstance(answer, Exception):
            raise answer
        where = shards[0][0].device if shards else torch.device("cpu")
        return Ran([tuple(x if x is None else x.to(where) for x in each) for each in answer.results], answer.cost)

    def close(self) -> None:
        put(self.path / f"case-{self.number}", None)
        self.agent.stopping = True
        self.agent.thread.join()
        self.folder.cleanup()
