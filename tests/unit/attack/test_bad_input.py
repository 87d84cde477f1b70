"""Bad words, drawn from all that a command takes: exit status 2, one line that names them, nothing made, at once."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accuracy.cli import USAGE_ERROR, check, judge, publish, reduce, report, tolerance
from tests.command_line import Answer
from tests.unit.gate.made_up import MadeUp, write_run

SECONDS = 10  # of the processor: another program beside the tests changes nothing
EXAMPLES = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
MAINS: dict[str, Callable[[Sequence[str]], object]] = {
    "accuracy report": report.main, "accuracy publish": publish.main, "accuracy check": check.main,
    "accuracy accept": lambda words: check.main(["accept", *words]),
    "accuracy judge": judge.main,
    "accuracy reduce": reduce.main, "accuracy tolerance": tolerance.main,
}  # fmt: skip
HUGE = "9" * 400
BLANKS = {
    "{place}": ["", "nowhere", "/dev/null", "/dev/null/x", "../nowhere", "\x1b[31m", "a\nb", "x" * 300, "x\x00y"],
    "{number}": ["-5", "0", "nan", "1.5", "", HUGE, "-" + HUGE, "²", "1e3x", "\x1b", "0x10", "ten"],
    "{word}": ["", "no_such_word", "\x1b[31m", "=", "a=", "[", "../x", HUGE, "nan", "é", "a\nb", "[]", "x\x00y"],
}
TOLERANCE = ("seeds={number}", "heads_kv={number}", "keys={number}", "inputs={word}", "kernel={word}", "mask={word}",
             "against={word}", "device={word}", "dtype={word}", "softmax_scale={word}")  # fmt: skip
PATTERNS = {  # of the words of other commands; {run} stands for the folder of a finished run
    "accuracy report": "{place}|{run} {place}|{run} --nope||{run} --earlier={word}",
    "accuracy publish": "{place}|{run} --to /dev/null|{run} {place}|--to x||{run} --to",
    "accuracy check": "{place}|{run} {place}|{run} --baseline {place}|{run} --second {place}|{run} --rows {number}"
    "|{run} {run} --baseline {run}|{run} --out /dev/null|{run} --part=1|{run} --nope||{run} x {place}",
    "accuracy accept": "{place}|{run} --to /dev/null --reason x|{run} --reason|{run} --nope||{run} {place}",
    "accuracy reduce": "{place}|{word}|{place} --layer {word}|{place} --tensor {word}|{place} --fn|{place} --layout x",
    "accuracy judge": "{place}|{word}|{place} --layers {word}|{place} --device {word}|{place} --to",
    "accuracy tolerance": "{word}||q_shape={word} dtype=float32|q_shape=1,8,2,{number} dtype=float32|"
    + "|".join(f"q_shape=1,8,2,4 dtype=float32 {each}" for each in TOLERANCE),
}


def filled(name: str, pattern: str) -> st.SearchStrategy[tuple[str, list[str]]]:
    """A command's name and its words, each blank drawn."""

    def word(part: str) -> st.SearchStrategy[str]:
        blank = next((each for each in BLANKS if each in part), None)
        return st.sampled_from(BLANKS[blank]).map(lambda value: part.replace(blank, value)) if blank else st.just(part)

    return st.tuples(st.just(name), st.tuples(*map(word, pattern.split())).map(list))


OTHERS = st.one_of(*(filled(name, each) for name, patterns in PATTERNS.items() for each in patterns.split("|")))


def assert_refused(answer: Answer, name: str, words: Sequence[str], before: float) -> None:
    said = (name, [word[:60] for word in words], answer)
    assert time.process_time() - before < SECONDS, said
    assert (answer.status, answer.out) == (USAGE_ERROR, ""), said
    assert answer.err.startswith(f"{name.split()[0]}"), said
    assert answer.err.endswith("\n"), said
    assert answer.err[:-1].isprintable(), said
    assert len(answer.err) < 4000, said  # the names of all planted faults


def test_bad_words_of_the_other_commands_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stress: bool
) -> None:
    run = write_run(tmp_path / "run", MadeUp(variants=("single_device",), dtypes=("bfloat16",), seeds=(0,)))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = sorted(tmp_path.rglob("*"))

    @settings(EXAMPLES, max_examples=400 if stress else 6)
    @given(OTHERS)
    def refused(drawn: tuple[str, list[str]]) -> None:
        name, words = drawn
        words = [word.replace("{run}", str(run)) for word in words]
        before = time.process_time()
        try:
            status = MAINS[name](words)
        except SystemExit as stopped:
            status = stopped.code
        assert_refused(Answer(status, *capsys.readouterr()), name, words, before)
        assert sorted(tmp_path.rglob("*")) == made

    refused()
