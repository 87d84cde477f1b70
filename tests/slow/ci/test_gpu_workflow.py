"""The example for a GPU, of fewer tokens and ranks: a baseline, the same function again, and one that is worse."""

import shutil
from pathlib import Path

import pytest

from tests.slow.ci.runner import BY_HAND, PULL, ROOT, Runner, git, read, repository

EXAMPLE = ROOT / "examples" / "workflows" / "accuracy-gpu.yml"
FUNCTION = (ROOT / "examples" / "ring_under_torchrun.py").read_text().replace("my_ring", "my_attention")
KEPT = "(block_lse - merged).exp(), merged\n"
SMALLER = {"MEASURE": read(EXAMPLE)["env"]["MEASURE"].replace("4096", "512").replace("[1,2,4]", "2")}
WORSE = FUNCTION.replace(KEPT, KEPT + "            lse = lse.to(q.dtype).float()\n")


@pytest.mark.gpu
@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_a_baseline_is_measured_on_the_gpu_and_gates_what_comes_after_it(tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text(FUNCTION)
    repository(tmp_path)
    renewed = Runner(tmp_path, github=BY_HAND, env=SMALLER)
    assert renewed.job(EXAMPLE, "renew") == 0, renewed.said
    git(tmp_path, "switch", "--quiet", "main")
    git(tmp_path, "merge", "--quiet", "origin/accuracy-baseline-5")
    outcomes = {}
    for name, text in (("same", FUNCTION), ("worse", WORSE)):
        (tmp_path / "my_package.py").write_text(text)
        shutil.rmtree(tmp_path / "accuracy-gate")
        outcomes[name] = Runner(tmp_path, github=PULL, env=SMALLER)
        outcomes[name].outcome = outcomes[name].job(EXAMPLE, "gate")
    assert outcomes["same"].outcome == 0, outcomes["same"].said
    assert outcomes["worse"].outcome == 1, outcomes["worse"].said
