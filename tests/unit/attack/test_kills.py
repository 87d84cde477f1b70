"""A command that is killed at any moment loses nothing: repeated, it gives what it would have given undisturbed."""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from accuracy.cli import check, report
from accuracy.report import build
from accuracy.results.run_table import read_baseline
from tests.unit.attack.test_damage import SMALL
from tests.unit.gate.made_up import write_run

BASELINE = Path("reports/made_up/some-gpu")
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym", "os.scandir")
MOST_EVENTS, MOST_SECONDS = 150, 2.0
pytestmark = [pytest.mark.stress(1), pytest.mark.parametrize("seed", range(25))]


def killed(command: Callable[[], object], folder: Path, draw: random.Random) -> None:
    """Run a command in a forked process, which has this one's modules, and kill it: at its nth access to a file below a
    folder, or after some time."""
    at = draw.randrange(1, MOST_EVENTS) if draw.random() < 0.7 else None
    deadline = time.monotonic() + (60.0 if at else draw.uniform(0, MOST_SECONDS))
    child = os.fork()
    if child == 0:
        _silently(command, (str(folder), "run", "outputs"), at)  # a command may name its folder as seen from there
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _silently(command: Callable[[], object], below: tuple[str, ...], at: int | None) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    seen = 0

    def count(event: str, given: tuple[object, ...]) -> None:
        nonlocal seen
        if event == "ctypes.dlsym" or (event in EVENTS and str(given[0]).startswith(below)):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    if at is not None:
        sys.addaudithook(count)
    try:
        command()
    finally:
        os._exit(0)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A finished run."""
    write_run(tmp_path / "run", SMALL)
    return tmp_path


def accept(folder: Path, reason: str) -> None:
    assert check.main(["accept", str(folder / "run"), "--to", str(folder / "reports"), "--reason", reason]) == 0


def test_a_killed_report_leaves_the_old_page_or_the_new_one(seed: int, whole: Path) -> None:
    page = whole / "run" / "report.html"
    assert report.main([str(page.parent)]) == 0
    new = page.read_bytes()
    page.write_bytes(b"old")
    killed(lambda: report.main([str(page.parent)]), whole, random.Random(f"report {seed}"))
    assert page.read_bytes() in (b"old", new)
    assert report.main([str(page.parent)]) == 0
    assert page.read_bytes() == new


def test_a_killed_check_or_accept_leaves_whole_files_and_says_the_same_again(
    seed: int, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "write_report", lambda folder: None)
    accept(whole, "first")
    words = [str(whole / "run"), "--baseline", str(whole / BASELINE), "--out", str(whole / "out")]

    def checked() -> tuple[object, str]:
        capsys.readouterr()
        return check.main(words), capsys.readouterr().out

    first, made, before = checked(), files(whole / "out"), files(whole / BASELINE)
    shutil.rmtree(whole / "out")
    killed(lambda: check.main(words), whole, random.Random(f"check {seed}"))
    left = files(whole / "out") if (whole / "out").exists() else {}
    assert all(made[name] == content for name, content in left.items() if not name.startswith("."))
    assert checked() == first
    assert made.items() <= files(whole / "out").items()
    assert files(whole / BASELINE) == before

    rows = read_baseline(whole / BASELINE).results
    killed(lambda: accept(whole, "again"), whole, random.Random(f"accept {seed}"))
    reasons = [json.loads(line)["reason"] for line in (whole / BASELINE / "history.jsonl").read_text().splitlines()]
    assert reasons == ["first", "again"] or files(whole / BASELINE) == before
    pd.testing.assert_frame_equal(read_baseline(whole / BASELINE).results, rows)
    accept(whole, "after it")
    lines = (whole / BASELINE / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == [*reasons, "after it"]
    assert [path.name for path in (whole / BASELINE).parent.iterdir()] == [BASELINE.name]
