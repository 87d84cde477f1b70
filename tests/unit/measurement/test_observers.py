"""Questions beside the errors: named by the configuration, a user's own among them, without a change of the numbers."""

from pathlib import Path

import pyarrow.parquet as pq

from accuracy.execute import worker
from accuracy.results import table
from tests.measuring import TINY, case_of, configuration, measure, pipeline

WORDS = (*TINY, "variant=ring", "world_size=2", "kernel=eager", "dtype=float32", "seed=0")
MINE = """
from dataclasses import dataclass
from accuracy.measurement.observe import Answer

@dataclass(frozen=True)
class Options:
    top: int = 3

def answer(observation, options):
    out = observation.results[1][0]
    return ANSWER
"""
LARGEST = 'Answer(tables={"largest": [{"value": float(x)} for x in out.flatten().topk(options.top).values]})'


def own(folder: Path, answer: str) -> str:
    file = folder / "mine.py"
    file.write_text(MINE.replace("ANSWER", answer))
    return f"+observers.mine={{code: {file}, top: 2}}"


def test_a_users_observer_gets_its_options_and_a_table_of_its_own(tmp_path: Path) -> None:
    case = case_of(*WORDS, own(tmp_path, LARGEST))
    asked = pipeline().measure(case)
    assert [row["error_rel"] for row in asked.rows] == measure(*WORDS)["error_rel"].tolist()
    worker.write(tmp_path / "run", case, asked)
    found = pq.read_table(tmp_path / "run" / "answers" / "largest" / f"{case.id}.parquet")["value"].to_pylist()
    assert (len(found), found) == (2, sorted(found, reverse=True))


BAD = {
    "out.max()": "returned Tensor",
    'Answer(results={"out": {"condition_sum": [0.0, 0.0]}})': "2 values of condition_sum of out",
    'Answer(tables={"../up": [{"a": 1}]})': "'../up' is no name",
    'Answer(tables={"mine": [{"a": 1}, {"a": "x"}]})': "ArrowInvalid",
    "1 / 0": "ZeroDivisionError",
}


def test_an_answer_that_cannot_be_stored_is_a_failed_row_with_the_reason(tmp_path: Path) -> None:
    for number, (answer, reason) in enumerate(BAD.items()):
        (tmp_path / str(number)).mkdir()
        rows = measure(*WORDS, own(tmp_path / str(number), answer))
        assert list(rows["status"]) == [table.FAILED]
        assert reason in rows["reason"].iloc[0]


def test_older_keys_ask_for_the_same_observers() -> None:
    for old, new in (
        (("reruns.repeat=1", "reruns.poison=true"), ("observers=repeats", "observers.repeats.poison=true")),
        (("conditions=true", "reruns.explain=true"), ("observers=[conditions,explain]",)),
        (("reruns.batchmates=4",), ("observers=invariance", "observers.invariance.batchmates=4")),
    ):
        assert {*configuration(*WORDS, *old).observers} == {*configuration(*WORDS, *new).observers}
