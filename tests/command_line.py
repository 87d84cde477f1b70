"""The console command, called in this process (fast) or started as a real one."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from accuracy.cli import USAGE_ERROR, run
from tests import processes
from tests.processes import Process

TINY = ("problem.seqlen=32", "problem.heads=2", "problem.heads_kv=2", "problem.head_dim=8",
        "report=false")  # fmt: skip
SHORT = (*TINY, "device=cpu", "variant=ring", "world_size=2", "dtype=float32")


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.rstrip("\n").rpartition("\n")[2]


class CommandLine:
    """`accuracy WORDS` inside this process, in a working directory of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # main sets it; this puts it back afterwards
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def __call__(self, *words: str) -> Answer:
        GlobalHydra.instance().clear()
        self.monkeypatch.setattr(sys, "argv", ["accuracy", *words])
        self.capsys.readouterr()
        status = 0
        try:
            run.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            GlobalHydra.instance().clear()
        captured = self.capsys.readouterr()
        return Answer(status, captured.out, captured.err)


def start(folder: Path, *words: str, threads: int = 1, **variables: str) -> Process:
    """A real `python -m accuracy WORDS` in `folder`; one thread, so that several fit on a small machine."""
    variables = {"OMP_NUM_THREADS": str(threads), "XDG_CACHE_HOME": str(folder / "cache")} | variables
    return processes.start("-m", "accuracy", *words, folder=folder, **variables)


def finish(process: Process) -> Answer:
    out, err = process.communicate(timeout=600)
    return Answer(process.returncode, out, err)


def line_of(capsys: pytest.CaptureFixture[str], name: str) -> str:
    """The one line that a command which refused its words has printed."""
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n"), printed.err[-1:]) == ("", 1, "\n"), printed
    assert printed.err.startswith(f"{name}: "), printed
    assert printed.err[:-1].isprintable(), printed
    return printed.err


def assert_one_line(answer: Answer, *told: str, name: str = "accuracy") -> None:
    assert (answer.status, answer.out) == (USAGE_ERROR, "")
    assert answer.err.startswith(f"{name}: ")
    assert answer.err.find("\n") == len(answer.err) - 1, answer.err
    assert answer.err[:-1].isprintable()
    for fragment in told:
        assert fragment in answer.err
