import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.core.errors import RanksEnded
from accuracy.execute import leftovers, start
from accuracy.execute.dispatch import task_of
from accuracy.execute.plan import plan
from accuracy.execute.ranks import agent
from accuracy.execute.ranks.rank import PATIENCE_SECONDS
from accuracy.results import table
from tests import command_line, measuring, planting
from tests.measuring import TINY, comparable, configuration
from tests.variants import schedules

pytestmark = pytest.mark.xdist_group("processes")
BOTH = ("world=processes", "+also.again={world:{simulated:{}}}")


def run(folder: Path, *words: str, parts: Path | None = None, more: Sequence[Sequence[str]] = ()) -> pd.DataFrame:
    grids = ((*TINY, "kernel=eager", *each) for each in (words, *more))
    return measuring.run(folder, *grids, folders=[parts] if parts else [])


def test_every_schedule_has_the_simulated_bits_and_so_have_reruns_on_unequal_shards(tmp_path: Path) -> None:
    words = [f"variant.{name}.sharding=40+20+36" for name in ("ring", "llama3", "llama3_ring")]
    words += ["variant=[ring,llama3,llama3_ring]", "reruns.repeat=1", "reruns.poison=true", "reruns.future=true"]
    every = (f"variant=[{','.join(schedules())}]", "world_size=[1,3,4]", "unusable=record")
    for folder, asked in (("every", every), ("unequal", (*words, "world_size=3"))):
        rows = run(tmp_path / folder, *asked, "dtype=bfloat16", *BOTH)
        worlds = (comparable(rows, world) for world in ("processes", "simulated"))
        pd.testing.assert_frame_equal(*worlds, check_exact=True)
        if folder == "every":
            measured = {*rows.loc[rows["status"] == table.OK, "variant"]}
            assert measured == {*schedules()} - {"flash_attn_split"}
    assert set(rows["status"]) == {table.OK}
    counts = rows[["repeats_differ", "poisoned", "future_differs"]]
    assert counts.notna().any().all()
    assert not counts.fillna(0).to_numpy().any()


def test_kept_ranks_measure_the_next_run_and_one_that_is_killed_between_runs_costs_no_case(tmp_path: Path) -> None:
    def processes() -> set[int]:
        assert agent._kept_agent is not None
        return {*agent._kept_agent._pcontext.pids().values()}  # type: ignore[union-attr]

    def measured(folder: str, size: int) -> pd.DataFrame:
        return run(tmp_path / folder, "variant=[ring,zigzag]", "world=processes", "device=cpu", f"world_size={size}")

    alone = measured("alone", 2)
    with agent.kept():
        rows, ranks = [measured("first", 2)], processes()
        rows.append(measured("second", 2))
        assert processes() == ranks
        os.kill(min(ranks), signal.SIGKILL)
        rows.append(measured("third", 2))
        assert processes().isdisjoint(ranks)
        assert {*measured("more", 3)["status"]} == {table.OK}
        assert len(left := processes()) == 3
    assert not any(leftovers.stat(each)[0] for each in left)
    for each in rows:
        pd.testing.assert_frame_equal(comparable(each, "processes"), comparable(alone, "processes"), check_exact=True)


SILENT = "no answer from rank 0, 1 within 4 s"
AFTERWARDS = {  # where no other rank waits for this one
    "calls_exit": ("raise SystemExit(0)", r"rank 1: SystemExit: 0 \(calls_exit.py:11, in forward\)"),
    "runs_out_of_memory": ("torch.empty(2**60)", "rank 1: RuntimeError: .*(memory|allocate).*"),
}
FAULTS = {
    "raises": (r"raise ValueError('a\ud800\x1b')", r"rank 1: ValueError: a\?\? \(.*raises.py:10, in forward\)"),
    "is_killed": ("os.kill(os.getpid(), 9)", "rank 1 was killed by signal 9, twice"),
    "ends_well": ("os._exit(0)", "rank 1 ended with status 0, twice"),
    "ends_as_a_lost_one": ("os._exit(3)", "its ranks ended 3 times, and none said why"),
    "stops": ("os.kill(os.getpid(), signal.SIGSTOP)", r"no answer from rank 1 \(stopped\) within 4 s"),
    "hangs": ("signal.pthread_sigmask(0, signal.valid_signals()); time.sleep(99)", SILENT),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_fault_of_one_rank_is_a_row_and_the_cases_around_it_are_measured(tmp_path: Path, device: str) -> None:
    """Over gloo, and over NCCL on two GPUs. A death that is not repeated costs a start alone; what never answers costs
    two limits of time; what hangs on the first rank alone, where it simulates, is a row too."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    parts = planting.dies_once(tmp_path / "mine", tmp_path / "marker")
    for name, (statement, _) in FAULTS.items():
        planting.first(parts, name, f"if rank.world.rank == 1: {statement}")
    for name, (statement, _) in AFTERWARDS.items():
        planting.last(parts, name, "forward", f"if rank.world.rank == 1: {statement}")
    planting.first(parts, "alone", "if type(rank.world).__name__ != 'ProcessesWorld': time.sleep(600)")
    limit = 4 if device == "cpu" else 8
    two, real = (
        ("world_size=2", f"case_seconds={limit}", f"device={device}"),
        ("world=processes", "world.processes.timeout_seconds=4"),
    )
    faults = FAULTS | AFTERWARDS
    words = (*two, *real, f"variant=[ring,{','.join(faults)},alone,dies_once,zigzag]")
    more = (*two, *real, "variant=hangs", "seed=[1,2,3]"), (*two, "variant=alone", "world=simulated")
    rows = run(tmp_path / "run", *words, parts=parts, more=more)
    cases = rows.drop_duplicates("case_id").set_index(["variant", "world", "seed"])["reason"].sort_index()
    for name, (_, reason) in faults.items():
        found = cases.loc[name, "processes", 0]
        assert re.fullmatch(reason, found), found
    silent = sorted(cases.loc["hangs", "processes"].str.partition(" from ")[0])
    told = "not tried: 2 cases of hangs before it gave no answer, and none an answer"
    assert silent == ["no answer", "no answer", told, told]
    assert cases.loc["alone", "simulated", 0] == f"took longer than case_seconds={limit}"
    assert not (tmp_path / "marker").exists()
    assert set(rows.loc[rows["status"] == table.OK, "variant"]) == {"ring", "alone", "dies_once", "zigzag"}


def test_a_function_of_one_rank_is_called_with_another_scale_too(tmp_path: Path) -> None:
    words = ("variant=callable", "variant.fn=tests.slow.foreign.functions.of_first_scale", "world=processes")
    rows = run(tmp_path / "run", *words, "world_size=1", "dtype=float32", "reruns.repeat=1", "reruns.poison=true")
    (reason,) = {*rows["reason"]}
    assert reason.startswith("rank 0: WrongResult: out of another softmax_scale is that of the call before")


def test_an_exception_that_all_ranks_hear_of_ends_no_process_and_sizes_share_them(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    planting.first(tmp_path / "mine", "notes", f"open('{pids}', 'a').write(f'{{os.getpid()}} ')")
    longer = "chr(128512) * 200 * rank.world.rank"  # than what is sent at once
    planting.first(tmp_path / "mine", "fails", f"raise ValueError({longer} or 'planted')")
    words = ("variant=[notes,fails]", "world_size=[1,2,3]", "world=processes")
    rows = run(tmp_path / "run", *words, parts=tmp_path / "mine")
    failed = rows.loc[rows["variant"] == "fails", "reason"].tolist()
    assert failed == ["rank 0: ValueError: planted (fails.py:10, in forward)"] * 3
    assert len({*pids.read_text().split()}) == 3  # a process for each of three ranks


def test_no_process_of_a_function_stays_and_none_takes_part_twice(tmp_path: Path) -> None:
    """Forked and left, forked in a session of its own, a copy of a rank that comes back, a thread that never ends; nor
    the files by which ranks share memory."""
    parts = tmp_path / "mine"
    files = "f'/dev/shm/torch_{os.getpid()}_7_planted', f'/dev/shm/cuda.shm.0.{os.getpid():x}.planted'"
    for name, statement in {
        "leaves": "os.fork() or time.sleep(600)", "hides": "os.fork() or (os.setsid(), os.fork(), time.sleep(600))",
        "doubles": "os.fork()", "threads": "__import__('threading').Thread(target=time.sleep, args=(600,)).start()",
        "shares": f"[open(name, 'w').close() for name in ({files})]",
    }.items():  # fmt: skip
        planting.first(parts, name, statement)
    words = "variant=[leaves,hides,doubles,threads,shares]", "world_size=[1,2]", "world=processes"
    rows = run(tmp_path / "run", *words, parts=parts)
    rows = rows[(rows["variant"] != "doubles") | (rows["world_size"] == 1)]  # of two, the copy talks to the other rank
    assert set(rows["status"]) == {table.OK}
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    kept = {server, *(each.pid for each in multiprocessing.active_children())}
    assert not {*leftovers.marked(start._mark())} - kept
    assert not [*Path("/dev/shm").glob("*planted")]


def test_what_a_function_changes_is_named_and_undone(tmp_path: Path) -> None:
    planting.first(tmp_path / "mine", "rude", "torch.Tensor.exp_ = torch.Tensor.exp2_")
    planting.first(tmp_path / "mine", "flushes", "torch.set_flush_denormal(True)")
    words = ("--config-dir=mine", *TINY, "kernel=eager", "variant=[rude,flushes,ring]", "world_size=2")
    more = ("world=processes", "report=false", "output_dir=after")
    said = command_line.finish(command_line.start(tmp_path, *words, *more)).err
    found = table.read_results(tmp_path / "after")
    assert "changed torch.Tensor.exp_" in said.partition("rude ")[2]
    assert "changed numbers below the normal ones" in said.partition("flushes ")[2]
    alone = comparable(run(tmp_path / "alone", "variant=ring", "world_size=2"))
    pd.testing.assert_frame_equal(comparable(found[found["variant"] == "ring"]), alone, check_exact=True)


LATE = f"rank.world.rank == 1 and time.sleep({PATIENCE_SECONDS + 1})"


def test_a_rank_that_is_late_or_ends_after_the_others_leaves_none_waiting(tmp_path: Path) -> None:
    """On a busy machine a healthy function of one device took 300 s: rank 1 raised later than the others waited."""
    alone = "from accuracy.core.errors import NotShared; raise NotShared('planted')"
    planting.first(tmp_path / "mine", "late", f"{LATE}; {alone}")
    planting.last(tmp_path / "mine", "exits_late", "forward", "if rank.world.rank == 1: raise SystemExit(0)")
    words = ("variant=[late,exits_late,ring]", "world_size=3", "world=processes", "world.processes.timeout_seconds=20")
    rows = run(tmp_path / "run", *words, parts=tmp_path / "mine")
    found = rows.groupby("variant")[["status", "reason"]].agg(set)
    assert found.loc["late"].tolist() == [{table.UNSUPPORTED}, {"planted"}]
    assert found.loc["exits_late", "status"] == {table.FAILED}
    assert next(iter(found.loc["exits_late", "reason"])).startswith("rank 1: SystemExit: 0")
    assert found.loc["ring", "status"] == {table.OK}
    assert not list((tmp_path / "run" / table.TRACEBACKS).glob("*-rank[02].txt"))


def ends_at_once(*given: object) -> Iterator[None]:
    os._exit(5)


def test_ranks_that_never_come_to_a_case_end_the_run(tmp_path: Path) -> None:
    asked = configuration(*TINY, "variant=ring", "world_size=2", "world=processes", "device=cpu")
    pending = plan(asked, None)
    with pytest.raises(RanksEnded, match="rank 0 ended with status 5 before a case began, twice"):
        list(agent.measure(task_of(asked, tmp_path, pending), pending, lambda case: None, ends_at_once))
