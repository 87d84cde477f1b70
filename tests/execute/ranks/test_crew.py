"""The command under torchrun and under submitit: real ranks of several launched processes, run by the first."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.paths import CONFIGS
from accuracy.results import table
from tests.execute.ranks.worlds import COSTS

pytestmark = pytest.mark.xdist_group("crew")
SMALL = ("device=cpu", "kernel=eager", "problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2",
         "problem.head_dim=8", "reference.folder=null", "report=false")  # fmt: skip


def torchrun(ranks: int, *words: str, **environment: str) -> subprocess.Popen[str]:
    flags = [word for word in words if word.startswith("--")]  # Hydra wants them before the overrides
    words = tuple(word for word in words if word not in flags)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
               "-m", "accuracy", *flags, *SMALL, *words]  # fmt: skip
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=os.environ | environment, start_new_session=True)  # fmt: skip


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=120)[0]


def alone(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "accuracy", *SMALL, *words], check=True, capture_output=True, timeout=120)


def rows(folder: Path) -> pd.DataFrame:
    """Without what differs between worlds although the bits agree."""
    results = table.read_results(folder).drop(columns=[*COSTS, "case_id", "world"])
    return results.sort_values(["variant", "world_size", "tensor", "rank"]).reset_index(drop=True)


@pytest.mark.parametrize("ranks", [2, 4])
def test_under_torchrun_every_number_is_the_simulated_one(tmp_path: Path, ranks: int) -> None:
    words = ["variant=[ring,llama3]", f"world_size={[1, 2, 4][: ranks // 2 + 1]}".replace(" ", ""), "dtype=bfloat16"]
    process = torchrun(ranks, *words, "world=processes", f"output_dir={tmp_path / 'launched'}")
    output = output_of(process)
    assert process.returncode == 0, output
    alone(*words, f"output_dir={tmp_path / 'simulated'}")
    launched = rows(tmp_path / "launched")
    assert set(launched["status"]) == {"ok"}
    pd.testing.assert_frame_equal(launched, rows(tmp_path / "simulated"), check_exact=True)


def test_a_killed_rank_of_torchrun_costs_its_case_only(tmp_path: Path) -> None:
    source = (Path(CONFIGS).parent / "accuracy" / "variant" / "ring.py").read_text()
    line = "    running = rank.running(q)\n"
    planted = source.replace(
        line, f"    if rank.world.rank == 1: __import__('os').kill(__import__('os').getpid(), 9)\n{line}"
    )
    assert planted != source
    mine = tmp_path / "mine" / "variant"
    mine.mkdir(parents=True)
    (mine / "faulty.py").write_text(planted)
    (mine / "faulty.yaml").write_text(
        "# @package variant.faulty\n# A planted fault\nforward: faulty\nbackward: faulty\nsharding: contiguous\n"
    )
    folder = tmp_path / "run"
    process = torchrun(2, f"--config-dir={tmp_path / 'mine'}", "variant=[faulty,ring]", "world_size=2",
                       "world=processes", f"output_dir={folder}")  # fmt: skip
    output = output_of(process)
    assert process.returncode == 0, output[:3000]
    results = table.read_results(folder)
    faulty = results[results["variant"] == "faulty"]
    assert list(faulty["status"]) == ["failed"]
    assert faulty["reason"].iloc[0] == "RankEnded: rank 1 was killed by signal 9"
    assert set(results.loc[results["variant"] == "ring", "status"]) == {"ok"}


def test_sigterm_under_torchrun_leaves_a_valid_partial_run_and_no_process(tmp_path: Path) -> None:
    marker, folder = uuid.uuid4().hex, tmp_path / "run"
    process = torchrun(2, "variant=ring", "world_size=2", "world=processes", "seed=[0,1,2,3,4,5,6,7,8,9]",
                       "problem.seqlen=2048", f"output_dir={folder}", MARKER=marker)  # fmt: skip
    deadline = time.monotonic() + 90
    while not list((folder / "results").glob("[!.]*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output_of(process)
    assert process.returncode != 0
    assert 1 <= len(table.finished_cases(folder)) < 10
    assert set(table.read_results(folder)["status"]) == {"ok"}
    assert table.read_run(folder)["ended"] is None
    assert not processes_with(marker)


def processes_with(marker: str) -> list[str]:
    """Running processes whose environment has the marker, a little later."""
    for _ in range(100):
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker.encode() in path.read_bytes():
                    found.append(path.parent.name)
        if not found:
            return []
        time.sleep(0.1)
    return found


MISTAKES = {
    "one process is enough for simulated ranks": (
        ["world=simulated", "world_size=1"],
        "torchrun started 2 processes, but world=simulated needs one; use world=processes",
    ),
    "more ranks than processes": (["world=processes", "world_size=3"], "has 2 ranks here"),
    "a backend that does not fit": (
        ["world=processes", "world.processes.backend=nccl"],
        "world.processes.backend=nccl carries no tensors of device=cpu; use gloo",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_all_launched_processes_with_one_line(tmp_path: Path, mistake: str) -> None:
    words, message = MISTAKES[mistake]
    process = torchrun(2, "variant=ring", *words, f"output_dir={tmp_path / 'run'}")
    output = output_of(process)
    assert process.returncode != 0
    said = [line for line in output.splitlines() if line.startswith("accuracy: ")]
    assert len(said) == 1, output
    assert message in said[0]
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_said_before_any_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        environment = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        command = [
            sys.executable,
            "-m",
            "accuracy",
            *SMALL,
            "variant=ring",
            "world=processes",
            f"output_dir={tmp_path}/x",
        ]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("accuracy: ")]
    assert len(lines) == 1
    assert f"port {port} of 127.0.0.1 cannot be opened" in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tasks", [1, 2])
def test_submitit_runs_each_job_of_a_sweep_on_as_many_processes_as_it_was_told(tmp_path: Path, tasks: int) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs attention-accuracy[cluster]")
    command = [sys.executable, "-m", "accuracy", "-m", *SMALL, "hydra/launcher=submitit_local",
               f"hydra.launcher.tasks_per_node={tasks}", "hydra.launcher.timeout_min=3", "world=processes",
               "world_size=[1,2]", "variant=ring,zigzag"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "outputs").iterdir())
    assert [len(table.finished_cases(run)) for run in runs] == [2, 2]


def test_a_mistake_in_a_job_of_submitit_is_the_command_s_exit_status(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs attention-accuracy[cluster]")
    command = [sys.executable, "-m", "accuracy", "-m", *SMALL, "hydra/launcher=submitit_local", "variant=ring",
               "hydra.launcher.timeout_min=3", "problem.heads=4,-1"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2, done.stderr
    assert "a job ended with status 2" in done.stderr
    assert "Traceback" not in done.stderr
