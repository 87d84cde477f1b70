"""Bad words, drawn from all that a command takes: exit status 2, one line that names them, nothing made, at once."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from accuracy.cli import USAGE_ERROR, check, judge, publish, reduce, report, tolerance
from experiments.probe import __main__ as probe
from tests.attack import bad_words
from tests.command_line import TINY, Answer, CommandLine
from tests.gate.made_up import MadeUp, write_run

SECONDS = 10  # of the processor: another program beside the tests changes nothing
EXAMPLES = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
MAINS: dict[str, Callable[[Sequence[str]], object]] = {
    "accuracy report": report.main, "accuracy publish": publish.main, "accuracy check": check.main,
    "accuracy accept": lambda words: check.main(["accept", *words]),
    "python -m experiments.probe": probe.main, "accuracy judge": judge.main,
    "accuracy reduce": reduce.main,
    "accuracy tolerance": tolerance.main,
}  # fmt: skip
SMALL = MadeUp(variants=("single_device",), dtypes=("bfloat16",), seeds=(0,))


def assert_refused(answer: Answer, name: str, words: Sequence[str], seconds: float) -> None:
    said = (name, [word[:60] for word in words], answer)
    assert (answer.status, answer.out) == (USAGE_ERROR, ""), said
    assert answer.err.startswith(f"{name.split()[0]}"), said
    assert answer.err.endswith("\n"), said
    assert answer.err[:-1].isprintable(), said
    assert len(answer.err) < 4000, said  # the names of all planted faults
    assert seconds < SECONDS, said


def test_a_bad_word_of_accuracy_is_told_in_one_line(accuracy: CommandLine, stress: bool) -> None:
    accuracy(*TINY, "device=cpu", "dry_run=true")  # imports torch

    @settings(EXAMPLES, max_examples=600 if stress else 6)
    @given(bad_words.MEASURE)
    def refused(bad: str) -> None:
        words = [*TINY, "device=cpu", *(bad.split(" ") if "experiment" in bad else [bad])]
        before = time.process_time()
        answer = accuracy(*words)
        assert_refused(answer, "accuracy", [bad], time.process_time() - before)
        assert list(accuracy.folder.iterdir()) == []

    refused()


def test_bad_words_of_the_other_commands_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stress: bool
) -> None:
    run = write_run(tmp_path / "run", SMALL)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))

    @settings(EXAMPLES, max_examples=400 if stress else 8)
    @given(bad_words.OTHERS)
    def refused(drawn: tuple[str, list[str]]) -> None:
        name, words = drawn
        words = [word.replace("{run}", str(run)) for word in words]
        began = time.process_time()
        try:
            status = MAINS[name](words)
        except SystemExit as stopped:
            status = stopped.code
        assert_refused(Answer(status, *capsys.readouterr()), name, words, time.process_time() - began)
        assert sorted(tmp_path.rglob("*")) == before

    refused()
