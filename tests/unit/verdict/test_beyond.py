"""Single elements that no rounding explains are proven wrong; no healthy schedule has one, on any inputs."""

from pathlib import Path

import pytest

from accuracy.explain.hypothesis import search
from accuracy.results.table import ALL_RANKS, OK, RESULTS_SCHEMA
from accuracy.verdict.label import LOGIC
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.measuring import measure


@pytest.fixture(autouse=True)
def _without_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and have tests of their own."""
    monkeypatch.setattr(search, "rows", lambda *case: [])


@pytest.mark.parametrize(("dtype", "by"), [("float32", 5e-4), ("bfloat16", 8.0)])
def test_one_wrong_element_is_proven_wrong(dtype: str, by: float, tmp_path: Path) -> None:
    """5e-4 of one element in 6,144 is 2e-5 of the norm: below the 6e-5 that the ladder allows float32."""
    folder = planting.last(tmp_path, "odd", "forward", f"if rank.world.rank == 1: out[0, 5, 1, 2] += {by}")
    words = ("variant=odd", "world_size=2", "kernel=eager", f"dtype={dtype}")
    rows = measure(*words, "reruns.explain=true", folders=[folder])
    out = rows[rows["tensor"] == "out"].set_index("rank")
    assert out["beyond"].to_dict() == {ALL_RANKS: 1, 0: 0, 1: 1}
    assert out.loc[1, ["worst_token", "worst_head", "worst_dim"]].to_list() == [53, 1, 2]
    judged = verdicts(rows.reindex(columns=RESULTS_SCHEMA.names)).set_index("tensor")
    assert judged.loc["out", "label"] == LOGIC
    if dtype == "float32":
        assert (judged.loc["out", "rule"], judged.loc["out", "numbers"]["beyond"]) == ("beyond", 1)
        unasked = measure(*words, folders=[folder]).reindex(columns=RESULTS_SCHEMA.names)
        rule = verdicts(unasked).set_index("tensor").loc["out", "rule"]
        assert rule == "excess"  # a ratio of norms, from which the fault is inferred


def assert_none_beyond(*words: str) -> None:
    rows = measure("kernel=eager", "reruns.explain=true", "problem.batch=1", *words)
    assert (rows["status"] == OK).all()
    judged = rows[~rows["tensor"].isin(["delta", "dsink"])]
    assert set(judged["tensor"]) == {"out", "lse", "dq", "dk", "dv"}
    assert (judged["beyond"] == 0).all(), words


def test_windows_documents_caps_and_formats_that_the_case_asks_for_have_bounds() -> None:
    for words in (
        "problem.window=7", "problem.documents=40+56", "problem.softcap=2.5", "problem.sinks=1",
        "problem.head_dim_v=12",
        "precision.partial=bfloat16", "precision.gradient_wire=float16 precision.lse=float16",
        "kernel.eager.probability_dtype=bfloat16", "kernel.eager.compute_dtype=bfloat16",
    ):  # fmt: skip
        assert_none_beyond("variant=ring", "dtype=float32", "world_size=2", *words.split())
