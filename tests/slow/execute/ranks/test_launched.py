import os
import signal
import socket
import uuid
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.errors import ConfigError, NoRendezvous
from accuracy.execute.ranks import journal, rendezvous
from accuracy.execute.start import Launch, launch
from accuracy.results import storage, table
from tests import planting
from tests.command_line import CommandLine
from tests.measuring import comparable
from tests.processes import LOOPBACK, Process, free_port, listening, marked, python, start, wait_until

pytestmark = pytest.mark.xdist_group("launched")
SMALL = ("device=cpu", "kernel=eager", "problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2",
         "problem.head_dim=8", "report=false")  # fmt: skip


def output_of(*processes: Process) -> str:
    return "".join("".join(process.communicate(timeout=180)) for process in processes)


def srun(*words: str, **environment: str) -> list[Process]:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(), **environment}  # fmt: skip
    each = [step | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    return [start("-m", "accuracy", *words, **variables) for variables in each]


def test_torchrun_has_the_simulated_numbers_and_a_death_is_a_restart(tmp_path: Path, accuracy: CommandLine) -> None:
    planting.dies_once(tmp_path / "mine", tmp_path / "marker")
    words = (f"--config-dir={tmp_path / 'mine'}", *SMALL, "variant=[ring,dies_once,llama3]", "world_size=[1,2,3]",
             "dtype=bfloat16", "unusable=record")  # fmt: skip
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    launched = start(*torchrun, "-m", "accuracy", *words, "world=processes", f"output_dir={tmp_path / 'launched'}")
    output = output_of(launched)
    assert launched.returncode == 0, output
    assert "accuracy: another rank is gone; what was measured stays" in output
    assert not (tmp_path / "marker").exists()
    assert accuracy(*words, f"output_dir={tmp_path / 'simulated'}").status == 0
    real, simulated = (table.read_results(tmp_path / name) for name in ("launched", "simulated"))
    too_many = real[real["world_size"] == 3]
    assert set(too_many["status"]) == {table.UNSUPPORTED}
    assert too_many["reason"].str.startswith("world=processes has 2 ranks here").all()
    real, simulated = (comparable(each[each["world_size"] < 3]) for each in (real, simulated))
    assert set(real["status"]) == {table.OK}
    pd.testing.assert_frame_equal(real.astype(simulated.dtypes), simulated, check_exact=True)


def test_without_restarts_a_death_ends_all_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """As under srun: there the first rank's store listens, on the given address only, and bears a silent stranger."""
    folder, mark = tmp_path / "run", uuid.uuid4().hex
    waits = f"[time.sleep(0.1) for _ in range(900) if not os.path.exists({str(tmp_path / 'connected')!r})]"
    planting.first(tmp_path / "mine", "killed", f"{waits}; rank.world.rank == 1 and os.kill(os.getpid(), 9)")
    words = (f"--config-dir={tmp_path / 'mine'}", *SMALL, "variant=[ring,killed,zigzag]", "world_size=2",
             "world=processes", f"output_dir={folder}")  # fmt: skip
    processes = srun(*words, MARK=mark)
    with socket.socket() as stranger:
        wait_until(lambda: listening(marked(mark)), 120)
        addresses = listening(marked(mark))
        assert {address for address, _ in addresses} <= {*LOOPBACK}
        stranger.connect(("127.0.0.1", addresses.pop()[1]))
        (tmp_path / "connected").touch()
        said = output_of(*processes)
    assert [process.returncode for process in processes] == [3, -signal.SIGKILL], said
    assert said.count("accuracy: another rank is gone") == 1
    assert {*table.read_results(folder)["variant"]} == {"ring"}
    assert not marked(mark)
    lines = (folder / journal.NAME).read_text().splitlines(keepends=True)
    assert [line.partition(" ")[0] for line in lines[-3:]] == ["began", "ranks", "ended"]
    (folder / journal.NAME).write_text("".join([*lines, *lines[-3:]]))  # as if it had been tried once more
    again = srun(*words)
    said = output_of(*again)
    assert [process.returncode for process in again] == [0, 0], said
    rows = table.read_results(folder)
    assert {*rows.loc[rows["status"] == table.OK, "variant"]} == {"ring", "zigzag"}
    assert set(rows.loc[rows["variant"] == "killed", "reason"]) == {"another rank is gone, twice"}


def test_a_launched_rank_has_a_limit_whatever_it_does(tmp_path: Path) -> None:
    """Each says where it is, and no process is left."""
    mark, said = uuid.uuid4().hex, "no answer within 5 s"
    statement = "signal.pthread_sigmask(0, signal.valid_signals()); time.sleep(99)"
    planting.first(tmp_path / "mine", "sleeps", f"if rank.world.rank == 1: {statement}")
    words = (f"--config-dir={tmp_path / 'mine'}", *SMALL, "variant=sleeps", "world_size=2", "world=processes",
             "case_seconds=5", f"output_dir={tmp_path / 'run'}")  # fmt: skip
    processes = srun(*words, MARK=mark)
    output = output_of(*processes)
    assert [process.returncode for process in processes] == [3, 3], output
    assert said in output
    assert "sleeps.py" in output
    assert said in (tmp_path / "run" / journal.NAME).read_text()
    wait_until(lambda: not marked(mark), 2)


def test_sigterm_under_a_launcher_leaves_a_valid_partial_run_and_no_process(tmp_path: Path) -> None:
    mark, folder = uuid.uuid4().hex, tmp_path / "run"
    processes = srun(*SMALL, "variant=ring", "world_size=2", "world=processes", f"seed={list(range(200))}",
                     f"output_dir={folder}", MARK=mark)  # fmt: skip
    wait_until(lambda: list((folder / "results").glob("[!.]*.parquet")), 120)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    output_of(*processes)
    assert all(process.returncode for process in processes)
    wait_until(lambda: not marked(mark), 20)
    assert set(table.read_results(folder)["status"]) == {table.OK}
    assert table.read_run(folder)["ended"] is None


def test_a_mistake_ends_all_launched_processes_with_one_line_and_a_port_in_use_is_said(tmp_path: Path) -> None:
    processes = srun(*SMALL, "variant=ring", "world=simulated", f"output_dir={tmp_path / 'run'}")
    output = output_of(*processes)
    assert [process.returncode for process in processes] == [2, 2]
    assert (output[:10], output.count("\n"), "use world=processes" in output) == ("accuracy: ", 1, True)
    assert not (tmp_path / "run").exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NoRendezvous, match=f"port {port} of 127.0.0.1 cannot be opened .*; set MASTER_PORT"):
            rendezvous._store(Launch("srun", 0, 2, 0, "127.0.0.1", port, one_host=True))


@pytest.mark.stress(1)
@pytest.mark.parametrize("mistake", [False, True])
def test_submitit_runs_a_job_of_a_sweep_on_as_many_processes_as_it_was_told(tmp_path: Path, mistake: bool) -> None:
    """A mistake in its job is the command's exit status."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs attention-accuracy[cluster]")
    more = ("hydra.launcher.tasks_per_node=2", "world=processes", "world_size=[1,2]")
    words = (*SMALL, "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=3", "variant=ring")
    done = python("-m", "accuracy", "-m", *words, *(("problem.heads=-1",) if mistake else more), folder=tmp_path)
    if mistake:
        assert (done.returncode, "a job ended with status 2" in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (tmp_path / "outputs").iterdir() if path.name != "sweep")
    assert len(storage.finished_cases(storage.read_files(run))) == 2


TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
STEP = {
    "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "512345",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "gpu[07-08]",
}  # fmt: skip
LOCAL = {"SUBMITIT_LOCAL_GLOBALID": "0", "SUBMITIT_LOCAL_NTASKS": "2", "SUBMITIT_LOCAL_LOCALID": "0",
         "SUBMITIT_LOCAL_JOB_ID": "77"}  # fmt: skip
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1"}


def test_what_a_launcher_says_is_read_and_a_process_alone_was_not_launched(tmp_path: Path, monkeypatch) -> None:
    """torchrun keeps its store; addresses that are given win over a scheduler's, whose steps meet at their first host,
    at a port of the job's number; processes that are all on one machine speak over its loopback interface."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames gpu[07-08]" ] && printf "gpu07\\ngpu08\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    given = {"MASTER_ADDR": "here", "MASTER_PORT": "1234"}
    for environment, expected in (
        (TORCHRUN, Launch("torchrun", 2, 4, 0, "node0", 29500, agent=True, one_host=False)),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, Launch("torchrun", 2, 4, 0, "node0", 29500, agent=True)),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        (STEP, Launch("srun", 1, 2, 1, "gpu07", 22345, one_host=False)),
        (STEP | given, Launch("srun", 1, 2, 1, "here", 1234, one_host=False)),
        (STEP | given | {"SLURM_STEP_TASKS_PER_NODE": "2"}, Launch("srun", 1, 2, 1, "here", 1234)),
        (LOCAL, Launch("submitit", 0, 2, 0, "127.0.0.1", 20077)),
        (BATCH, None),
        ({}, None),
    ):
        assert launch(environment) == expected
    with pytest.raises(ConfigError, match="RANK='two' in the environment; allowed: a whole number"):
        launch(TORCHRUN | {"RANK": "two"})
