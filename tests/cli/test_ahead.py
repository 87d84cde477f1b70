import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from accuracy.cli import launched
from accuracy.config.read import read
from accuracy.execute import ahead, worker_process
from tests.command_line import TINY, finish, start
from tests.measuring import composed
from tests.processes import marked, wait_until


@pytest.mark.parametrize(
    ("words", "threads", "gpus", "expected"),
    [((), None, 0, True), (("workers=2",), None, 0, True), ((), None, 1, False), ((), None, 2, True),
     ((), "1", 0, False), (("workers=1",), None, 0, False), (("workers=1", "world=processes"), None, 0, True),
     (("dry_run=true",), None, 0, False)],
)  # fmt: skip
def test_it_is_started_where_several_processes_will_measure(
    words: tuple[str, ...], threads: str | None, gpus: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: started.append(blocked()))
    monkeypatch.setattr(launched, "glob", lambda pattern: [pattern] * gpus)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    launched.start_server(composed(*words))
    assert started == [{signal.SIGINT}] * expected
    assert signal.SIGINT not in blocked()


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("experiment=diagnose",), True), (("experiment=demo",), False), (("experiment=diagnose", "workers=1"), False),
     (("experiment=diagnose", "dry_run=true"), False), (("experiment=nothing",), False), ((), False),
     (("experiment=demo", "workers=processors"), True)],
)  # fmt: skip
def test_it_is_started_before_hydra_where_the_words_or_the_experiment_ask_for_workers(
    words: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: started.append(True))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launched.start_server_of(["variant=ring", *words])
    assert started == [True] * expected


@pytest.mark.parametrize(
    ("words", "gpus", "expected"),
    [(("experiment=diagnose",), 1, 8), (("experiment=diagnose",), 2, 0), (("experiment=diagnose",), 0, 0),
     (("experiment=diagnose", "device=cpu"), 1, 0), (("experiment=diagnose", "dry_run=true"), 1, 0), ((), 1, 0)],
)  # fmt: skip
def test_processes_of_a_gpu_are_guessed_where_all_of_them_are_of_one(
    words: tuple[str, ...], gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "glob", lambda pattern: [pattern] * gpus)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert ahead.expected(read(composed("variant=ring", *words))) == [0] * expected


def test_a_guessed_gpu_that_torch_does_not_see_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int | None] = []
    monkeypatch.setattr(worker_process, "prepare", opened.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ahead._prepare(0, True)
    assert opened == []
    ahead._prepare(0, False)  # it fails, and says why
    assert opened == [0]


def test_what_the_first_case_waits_for_imports_no_pandas_no_scipy_and_no_matplotlib() -> None:
    late = "pandas", "scipy", "matplotlib", "jinja2", "torch.distributed.elastic.agent"
    needed = "accuracy.cli.plan_text, accuracy.execute.plan, accuracy.execute.run, accuracy.execute.workers"
    script = f"import sys, {needed}, accuracy.execute.ranks.rank_loop; print(sorted(sys.modules.keys() & {late!r}))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def blocked() -> set[signal.Signals]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def test_ctrl_c_while_it_imports_leaves_it_at_work_and_says_nothing(tmp_path: Path) -> None:
    mark = f"{os.getpid()}-ahead"
    words = (*TINY, "device=cpu", "variant=ring", "world_size=[1,2]", "workers=2", "output_dir=run")
    process = start(tmp_path, *words, threads=2, ACCURACY_TEST_MARK=mark)
    wait_until(lambda: any("forkserver" in command_of(each) for each in marked(mark)), 60)
    for each in marked(mark):
        if "forkserver" in command_of(each):
            os.kill(each, signal.SIGINT)
    answer = finish(process)
    assert answer.status == 0, answer.err
    assert "2 cases on 2 cpu workers" in answer.err
    assert "Traceback" not in answer.err
    assert "KeyboardInterrupt" not in answer.err


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
