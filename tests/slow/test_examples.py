"""Every example runs as its README says, on a CPU; those that can, on a GPU."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.processes import python

pytestmark = pytest.mark.xdist_group("processes")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_named_and_every_test_of_theirs_passes() -> None:
    """Inside this process, which has imported torch."""
    named = re.findall(r"^\| \[?([\w./]+)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)[1:]
    here = {each.name + "/" * each.is_dir() for each in EXAMPLES.iterdir() if each.name[0] not in "_."}
    assert {*named, "README.md"} == here
    passed = set()

    class Listening:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" and report.passed:
                passed.add(Path(report.nodeid.partition("::")[0]).name)

    words = ("-p", "no:cacheprovider", "-c", str(EXAMPLES.parent / "pyproject.toml"), str(EXAMPLES))
    assert pytest.main([*words], [Listening()]) == pytest.ExitCode.OK
    assert passed == {each.name for each in EXAMPLES.rglob("test_*.py")}


@pytest.mark.gpu
def test_the_tests_of_other_projects_pass_on_a_gpu_and_packages_own_code_with_them(tmp_path: Path) -> None:
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", str(EXAMPLES / "adopt"), folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^PASSED \S+_s_own_(?:code|zigzag)", done.stdout, re.MULTILINE)) == 3


def test_a_ring_under_torchrun_has_the_error_of_one_device(tmp_path: Path) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = python(*words, str(EXAMPLES / "ring_under_torchrun.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    times = [float(each) for each in re.findall(r"my_ring|^ +2 +(\S+)", done.stdout, re.MULTILINE) if each]
    assert len(times) == 2
    assert max(times) < 1.5


def test_a_captured_training_loop_is_judged_as_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["capture_training.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "capture_training.py"), run_name="__main__")
    assert "rounds: 2 layers" in capsys.readouterr().out
    assert any(tmp_path.iterdir())
