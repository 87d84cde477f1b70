import os
from pathlib import Path

import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute.start import Launch, launch

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
