import signal
import uuid
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute.ranks import journal
from accuracy.execute.start import Launch
from accuracy.execute.start import launch as read_launch
from accuracy.results import table
from tests import planting
from tests.command_line import CommandLine
from tests.measuring import comparable
from tests.processes import Process, launch, marked, start, wait_until

pytestmark = pytest.mark.xdist_group("launched")
SMALL = ("device=cpu", "kernel=eager", "problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2",
         "problem.head_dim=8", "report=false")  # fmt: skip


RESTARTED = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2", "-m",
             "accuracy")  # fmt: skip


def output_of(*processes: Process) -> str:
    return "".join("".join(process.communicate(timeout=180)) for process in processes)


def two(*words: str, **variables: str) -> list[Process]:
    """Ranks that nobody starts anew."""
    return launch(2, "-m", "accuracy", *words, **variables)


def test_torchrun_has_the_simulated_numbers_and_a_death_or_a_limit_is_a_restart(
    tmp_path: Path, accuracy: CommandLine
) -> None:
    """Each rank has a limit whatever it does, and says where it is; the next start makes a row of it. No process is
    left."""
    mark, late = uuid.uuid4().hex, "no answer within 4 s"
    parts = planting.dies_once(tmp_path / "mine", tmp_path / "marker")
    statement = "signal.pthread_sigmask(0, signal.valid_signals()); time.sleep(99)"
    planting.first(parts, "sleeps", f"if rank.world.rank == 1: {statement}")
    words = (f"--config-dir={parts}", *SMALL, "world_size=[1,2,3]", "dtype=bfloat16", "unusable=record")
    more = ("variant=[ring,dies_once,sleeps,llama3]", "case_seconds=4", "world=processes")
    launched = start(*RESTARTED, *words, *more, f"output_dir={tmp_path / 'launched'}", MARK=mark)
    output = output_of(launched)
    assert launched.returncode == 0, output
    assert late in output  # torchrun may end the other rank of one that died before it tells
    assert "sleeps.py" in output
    assert not (tmp_path / "marker").exists()
    wait_until(lambda: not marked(mark), 2)
    assert accuracy(*words, "variant=[ring,dies_once,llama3]", f"output_dir={tmp_path / 'simulated'}").status == 0
    real, simulated = (table.read_results(tmp_path / name) for name in ("launched", "simulated"))
    slept = (real["variant"] == "sleeps") & (real["world_size"] == 2)
    assert set(real.loc[slept, "reason"]) == {late}
    too_many = real[real["world_size"] == 3]
    assert set(too_many["status"]) == {table.UNSUPPORTED}
    assert too_many["reason"].str.startswith("world=processes has 2 ranks here").all()
    real, simulated = (
        comparable(each[(each["world_size"] < 3) & (each["variant"] != "sleeps")]) for each in (real, simulated)
    )
    assert set(real["status"]) == {table.OK}
    pd.testing.assert_frame_equal(real.astype(simulated.dtypes), simulated, check_exact=True)


@pytest.mark.parametrize("gone", [0, pytest.param(1, marks=pytest.mark.stress)])
def test_without_restarts_a_death_ends_all_and_the_same_command_goes_on_until_sigterm_ends_it(
    gone: int, tmp_path: Path
) -> None:
    """No process stays, and the partial run is a valid one."""
    folder, mark, marker = tmp_path / "run", uuid.uuid4().hex, tmp_path / "marker"
    marker.touch()
    statement = f"rank.world.rank == {gone} and os.path.exists('{marker}') and os.kill(os.getpid(), 9)"
    planting.first(tmp_path / "mine", "killed", statement)
    words = (f"--config-dir={tmp_path / 'mine'}", *SMALL, "variant=[ring,killed]", f"seed={list(range(200))}",
             "world_size=2", "world=processes", f"output_dir={folder}")  # fmt: skip
    processes = two(*words, MARK=mark)
    said = output_of(*processes)
    statuses = [process.returncode for process in processes]
    assert (statuses[gone], statuses[1 - gone]) == (-signal.SIGKILL, journal.LOST), said
    assert said.count("accuracy: another rank is gone") == 1
    assert {*table.read_results(folder)["variant"]} == {"ring"}
    assert not marked(mark)
    lines = (folder / journal.NAME).read_text().splitlines(keepends=True)
    assert [line.partition(" ")[0] for line in lines[-3:]] == ["began", "ranks", "ended"]
    (folder / journal.NAME).write_text("".join([*lines, *lines[-3:]]))  # as if it had been tried once more
    marker.unlink()
    before = len([*(folder / "results").iterdir()])
    again = two(*words, MARK=mark)
    wait_until(lambda: len([*(folder / "results").glob("[!.]*.parquet")]) > before + 3, 120)
    for process in again:
        process.send_signal(signal.SIGTERM)
    output_of(*again)
    assert all(process.returncode for process in again)
    wait_until(lambda: not marked(mark), 20)
    rows = table.read_results(folder)
    assert {*rows.loc[rows["status"] == table.OK, "variant"]} == {"ring", "killed"}
    assert rows.loc[rows["status"] != table.OK, "reason"].tolist() == ["another rank is gone, twice"]
    assert table.read_run(folder)["ended"] is None


def test_a_mistake_ends_all_launched_processes_with_one_line(tmp_path: Path) -> None:
    processes = two(*SMALL, "variant=ring", "world=simulated", f"output_dir={tmp_path / 'run'}")
    output = output_of(*processes)
    assert [process.returncode for process in processes] == [2, 2]
    assert (output[:10], output.count("\n"), "use world=processes" in output) == ("accuracy: ", 1, True)
    assert not (tmp_path / "run").exists()


TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500"}  # fmt: skip


def test_what_torchrun_says_is_read_and_a_process_alone_was_not_launched() -> None:
    """Processes that are all on one machine speak over its loopback interface. A step of SLURM is no launch."""
    for environment, expected in (
        (TORCHRUN, Launch(2, 4, 0, "node0", 29500, one_host=False)),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, Launch(2, 4, 0, "node0", 29500)),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}, None),
        ({}, None),
    ):
        assert read_launch(environment) == expected
    with pytest.raises(ConfigError, match="RANK='two' in the environment; allowed: a whole number"):
        read_launch(TORCHRUN | {"RANK": "two"})
    for wrong in ({"RANK": "4"}, {"MASTER_PORT": "0"}, {"MASTER_PORT": "65536"}):
        with pytest.raises(ConfigError, match="allowed: a rank below the size, and ports from 1 to 65535"):
            read_launch(TORCHRUN | wrong)
