"""A sweep has one report, of all its jobs, where hydra.sweep.dir says."""

import json
from pathlib import Path

from accuracy.report import folder
from tests.command_line import SHORT, CommandLine

WORDS = ("-m", *SHORT, "report=true", "variant=ring,zigzag")


def test_a_sweep_has_one_report_of_all_its_jobs_in_its_folder(accuracy: CommandLine, tmp_path: Path) -> None:
    answer = accuracy(*WORDS, "hydra.sweep.dir=here")
    assert answer.status == 0
    assert answer.last_line == "report of 2 jobs: here/report.html"
    assert [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("report.html")] == ["here"]
    assert sorted(path.parent.name for path in (tmp_path / "here").glob("*/run.json")) == ["0", "1"]
    run = folder.read(tmp_path / "here")
    assert {*run.results["variant"]} == {"ring", "zigzag"}
    assert (len(run.cases), run.planned, run.missing_cases, bool(run.record["ended"])) == (2, 2, 0, True)
    assert run.record["argv"] == ["accuracy", *WORDS, "hydra.sweep.dir=here"]


def test_a_sweep_without_a_folder_goes_on_in_those_of_the_same_commands(accuracy: CommandLine, tmp_path: Path) -> None:
    alone = accuracy(*SHORT, "variant=ring")
    answer = accuracy(*WORDS)
    assert (alone.status, answer.status) == (0, 0)
    (place,) = (tmp_path / "outputs").glob("sweep-*")
    assert {path.name for path in place.iterdir()} == {"multirun.yaml", "report.html", "sweep.json"}
    jobs = json.loads((place / "sweep.json").read_text())["jobs"]
    assert len(jobs) == 2
    assert {Path(job).parent.name for job in jobs} == {"outputs"}
    assert len([path for path in (tmp_path / "outputs").iterdir() if path != place]) == 2  # ring's found its own again


def test_a_job_that_fails_leaves_the_others_their_report(accuracy: CommandLine, tmp_path: Path) -> None:
    """What the words alone do not say: 32 tokens are not shared by 3 ranks."""
    answer = accuracy("-m", *SHORT, "report=true", "world_size=2,3", "hydra.sweep.dir=here")
    assert answer.status == 2
    assert {*folder.read(tmp_path / "here").results["world_size"]} == {2}
