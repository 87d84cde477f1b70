"""One run may hold the same cases on real ranks and on simulated ones, and its experiment sees a digit that differs."""

from pathlib import Path

import pytest

from accuracy.results import claim, table
from tests.command_line import CommandLine

pytestmark = pytest.mark.xdist_group("processes")
SMALL = ("problem.seqlen=64", "problem.head_dim=8", "kernel=eager", "device=cpu", "dtype=bfloat16", "report=false")


def test_eight_processes_give_the_simulated_numbers_and_one_digit_would_be_seen(
    accuracy: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert accuracy("experiment=real_ranks", "world_size=[1,8]", f"output_dir={folder}", *SMALL).status == 0
    results = table.read_results(folder)
    assert set(results["status"]) == {"ok"}
    assert results.groupby("world")["case_id"].nunique().to_dict() == {"processes": 16, "simulated": 16}
    assert [each.holds for each in claim.judge("real_ranks", results)] == [True, True]
    one = results.index[(results["world"] == "processes") & (results["tensor"] == "dk")][-1]
    changed = results.assign(
        error_rel=results["error_rel"].where(results.index != one, results["error_rel"] * (1 + 1e-9))
    )
    assert [each.holds for each in claim.judge("real_ranks", changed)] == [False, True]
    alone = results[results["world"] == "simulated"]
    assert [each.holds for each in claim.judge("real_ranks", alone)] == [None, True]
