"""What do real ranks cost beside the work itself? Start-up once, then per case: telling, results, waiting.

Where processes share a core, a case with work waits mostly for the operating system's schedule; a case with next to no
work shows what is ours: 3 exchanges (the case is told, results are described, results come).
ring-flash-attention's own scripts start torchrun for every case: 15.4 to 18.1 s each on H200s.
"""

import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.execute.dispatch import task_of
from accuracy.execute.plan import Planned, plan
from accuracy.execute.ranks import agent, journal
from accuracy.execute.ranks.rank import Rank, Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.measurement.pipeline import Pipeline
from accuracy.simulate.program import Mode, Ran
from accuracy.world.base import Tensors
from tests.measuring import configuration

TARGET = 10  # milliseconds a case on top of the work, on 4 H200s
CASES = 30
TINY = ("problem.seqlen=64", "problem.heads=1", "problem.heads_kv=1", "problem.head_dim=8")
PROBLEMS = {"512 tokens": (), "64 tokens": TINY}
ONE_GPU = 16
"""Ranks on one GPU: ready within 15 s, a case of 8,192 tokens within 2 s, 700 MiB for each without its tensors."""


def lines(device: str) -> Iterator[str]:
    most = torch.cuda.device_count() if device == "cuda" else 4
    words = ["problem=small", "variant=[ring,zigzag,llama3]", f"device={device}", "dtype=bfloat16", "world=processes"]
    words += ["kernel=eager"] if device == "cpu" else []
    sizes = [size for size in (2, 4, 8) if size <= most]
    parts = [(size, problem) for problem in PROBLEMS for size in sizes]
    pending = [
        planned
        for size, problem in parts
        for planned in (plan(configuration(*words, *PROBLEMS[problem], f"world_size={size}"), None) * CASES)[:CASES]
    ]
    if sizes:
        found = _measure(configuration(*words), pending)
        yield f"real ranks: {sizes[-1]} processes ready after {found['ready']:.1f} s, once a run"
    for place, (size, problem) in enumerate(parts):
        spent = found["spent"][place * CASES : (place + 1) * CASES]
        extra = sorted(1000 * (wall - work) for wall, work in spent[3:])  # each variant's first warms up
        target = f"; target <= {TARGET}" if device == "cuda" else ""
        yield (
            f"  {size} ranks, {problem}: {statistics.median(extra):.1f} ms a case on top of the work"
            f" (slowest tenth from {extra[-len(extra) // 10]:.1f}){target}"
        )
    if device == "cuda":
        words += ["problem.seqlen=8192", "problem.head_dim=128", "seed=[0,1,2]", f"world_size={ONE_GPU}"]
        words += ["world.processes.share_gpu=true"]
        asked = configuration(*words)
        long = plan(asked, None, None, 1)
        found = _measure(asked, plan(configuration(*words, *TINY), None, None, 1) + long)
        walls = sorted(wall for wall, _ in found["spent"][-len(long) :][3:])
        yield (
            f"{ONE_GPU} ranks on one GPU: ready after {found['ready']:.1f} s (target <= 15); 8,192 tokens:"
            f" {statistics.median(walls):.2f} s a case, slowest {walls[-1]:.2f} (target <= 2);"
            f" {found['used'][-len(long) - 1] / ONE_GPU / 2**20:.0f} MiB a rank without its tensors (target <= 700)"
        )


def _measure(asked: Configuration, pending: list[Planned]) -> dict[str, Any]:
    """Seconds until the ranks are ready, and what `timed` found."""
    with tempfile.TemporaryDirectory() as name:
        task = replace(task_of(asked, Path(name), pending), pipeline=Pipeline("bench"))
        begin = time.perf_counter()
        deque(agent.measure(task, pending, lambda case: None, timed), maxlen=0)
        found: dict[str, Any] = json.loads((task.folder / "spent.json").read_text())
    return found | {"ready": found["ready"] - begin}


def timed(task: Task, ranks: Ranks, pending: Sequence[Planned]) -> Iterator[None]:
    """What the first rank does: wall seconds of each case's ranks, and of the slowest one's work; bytes of the device
    that are in use then."""
    ready = time.perf_counter()
    rank = Rank(task, ranks)
    spent: list[tuple[float, float]] = []
    used: list[int] = []

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
        if each.case.device == "cuda":
            free, total = torch.cuda.mem_get_info()
            used.append(total - free)
        yield
    (task.folder / "spent.json").write_text(json.dumps({"ready": ready, "spent": spent, "used": used}))
    for each in pending:
        journal.note(task.folder, "ok", each.case.id)
