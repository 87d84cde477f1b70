"""What do real ranks cost beside the work itself? Start-up once, then per case: telling, results, waiting.

Where processes share a core, a case with work waits mostly for the operating system's schedule; a case with next to no
work shows what is ours: 3 exchanges (the case is told, results are described, results come).
ring-flash-attention's own scripts start torchrun for every case: 15.4 to 18.1 s each on H200s.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from accuracy.core.case import Case
from accuracy.execute.plan import Planned, plan
from accuracy.execute.ranks import agent
from accuracy.execute.ranks.rank_loop import END, Rank, Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.simulate.program import Mode, Ran
from accuracy.world.base import Tensors
from tests.measuring import configuration

TARGET = 10  # milliseconds a case on top of the work, on 4 H200s
CASES = 30
PROBLEMS = {
    "512 tokens": (),
    "64 tokens": ("problem.seqlen=64", "problem.heads=1", "problem.heads_kv=1", "problem.head_dim=8"),
}


def lines(device: str) -> Iterator[str]:
    most = torch.cuda.device_count() if device == "cuda" else 4
    if most < 2:
        yield f"real ranks: not measured, there is {most} GPU"
        return
    sizes = [size for size in (2, 4, 8) if size <= most]
    words = ["problem=small", "variant=[ring,zigzag,llama3]", f"device={device}", "dtype=bfloat16", "world=processes"]
    words += ["kernel=eager"] if device == "cpu" else []
    parts = [(size, problem) for problem in PROBLEMS for size in sizes]
    pending = [
        planned
        for size, problem in parts
        for planned in (plan(configuration(*words, *PROBLEMS[problem], f"world_size={size}"), None) * CASES)[:CASES]
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases, backend = [each.case for each in pending], "nccl" if device == "cuda" else "gloo"
        task = Task(cases, Pipeline("bench", Cache(None, 0.0)), folder, backend, sizes, 120.0, torch.get_num_threads())
        begin = time.perf_counter()
        ranks = agent.Agent(task, pending, folder, timed)
        ranks.run()
        found = json.loads((folder / "spent.json").read_text())
    yield f"real ranks: {sizes[-1]} processes ready after {found['ready'] - begin:.1f} s, once a run"
    for place, (size, problem) in enumerate(parts):
        spent = found["spent"][place * CASES : (place + 1) * CASES]
        extra = sorted(1000 * (wall - work) for wall, work in spent[3:])  # each variant's first warms up
        target = f"; target <= {TARGET}" if device == "cuda" else ""
        yield (
            f"  {size} ranks, {problem}: {statistics.median(extra):.1f} ms a case on top of the work"
            f" (slowest tenth from {extra[-len(extra) // 10]:.1f}){target}"
        )


def timed(task: Task, ranks: Ranks, pending: Sequence[Planned]) -> Iterator[None]:
    """What the first rank does: wall seconds of each case's ranks, and of the slowest one's work."""
    ready = time.perf_counter()
    rank = Rank(task, ranks)
    spent: list[tuple[float, float]] = []

    def run(case: Case, shards: Sequence[Tensors], mode: Mode) -> Ran:
        if case.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        ran = rank.run_all(case, shards, mode)
        spent.append((time.perf_counter() - begin, ran.cost.seconds))
        return ran

    pipeline = rank.pipeline
    pipeline.run_ranks = run
    for number, each in enumerate(pending):
        rank.prepare(number)
        (row, *_) = pipeline.measure(each.case).rows
        assert row["status"] == "ok", row["reason"]
        yield
    (task.folder / "spent.json").write_text(json.dumps({"ready": ready, "spent": spent}))
    rank.tell(0, END)
