"""Single elements that no rounding explains are proven wrong; no healthy schedule has one, on any inputs."""

from pathlib import Path

import pandas as pd
import pytest

from accuracy.explain.hypothesis import search
from accuracy.results.table import ALL_RANKS, OK, RESULTS_SCHEMA
from accuracy.verdict.label import LOGIC
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.fault.healthy import INPUTS
from tests.measuring import measure

VARIANTS = (
    "ring", "zigzag", "striped", "llama3", "llama3_ring", "ulysses", "bpt_ring", "double_ring", "te_p2p",
    "te_all_gather",
)  # fmt: skip
ONE_ELEMENT = """
async def forward(self, rank, q, k, v):
    out, lse = await super().forward(rank, q, k, v)
    if rank.world.rank == 1:
        out[0, 5, 1, 2] += {by}
    return out, lse
"""


@pytest.fixture(autouse=True)
def _without_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and have tests of their own."""
    monkeypatch.setattr(search, "rows", lambda *case: [])


def counted(rows: pd.DataFrame) -> pd.Series:
    """By tensor, over all ranks."""
    return rows[rows["rank"] == ALL_RANKS].set_index("tensor")["beyond"]


@pytest.mark.parametrize(("dtype", "by"), [("float32", 5e-4), ("bfloat16", 8.0)])
def test_one_wrong_element_is_proven_wrong(dtype: str, by: float, tmp_path: Path) -> None:
    """5e-4 of one element in 6,144 is 2e-5 of the norm: below the 6e-5 that the ladder allows float32."""
    folder = planting.ring(tmp_path, "odd", ONE_ELEMENT.format(by=by))
    words = ("variant=odd", "world_size=2", "kernel=eager", f"dtype={dtype}")
    rows = measure(*words, "reruns.explain=true", folders=[folder])
    assert counted(rows)["out"] == 1
    assert rows[(rows["tensor"] == "out") & (rows["rank"] == 0)]["beyond"].item() == 0
    (place,) = rows[(rows["tensor"] == "out") & (rows["rank"] == 1)].to_dict("records")
    assert (place["worst_token"], place["worst_head"], place["worst_dim"]) == (53, 1, 2)
    judged = verdicts(rows.reindex(columns=RESULTS_SCHEMA.names)).set_index("tensor")
    assert judged.loc["out", "label"] == LOGIC
    if dtype == "float32":
        assert judged.loc["out", "rule"] == "beyond"
        assert judged.loc["out", "numbers"]["beyond"] == 1
        unasked = measure(*words, folders=[folder]).reindex(columns=RESULTS_SCHEMA.names)
        unasked = verdicts(unasked).set_index("tensor")
        assert unasked.loc["out", "rule"] == "excess"  # a ratio of norms, from which the fault is inferred


@pytest.mark.stress(10, "variant", "dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_element_of_a_healthy_schedule_is_beyond(variant: str, inputs: str, dtype: str) -> None:
    every = (f"inputs={inputs}", "world_size=[1,4]", "problem.seqlen=48", "problem.batch=1")
    rows = measure(f"variant={variant}", f"dtype={dtype}", "kernel=eager", "reruns.explain=true", *every)
    assert (rows["status"] == OK).all()
    judged = rows[rows["tensor"] != "delta"]
    assert judged["beyond"].notna().all()
    assert (judged["beyond"] == 0).all()


@pytest.mark.parametrize(
    "words",
    [
        ("precision.partial=bfloat16",), ("precision.gradient_wire=float16", "precision.lse=float16"),
        ("kernel.eager.probability_dtype=bfloat16",), ("kernel.eager.compute_dtype=bfloat16",),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_format_that_the_case_asks_for_is_no_fault(words: tuple[str, ...]) -> None:
    rows = measure("variant=ring", "dtype=float32", "kernel=eager", "world_size=4", "reruns.explain=true", *words)
    assert (counted(rows).drop("delta") == 0).all()


def test_windows_documents_caps_and_sinks_have_bounds() -> None:
    for shape in ("window=7", "documents=40+56", "softcap=2.5", "sinks=1", "head_dim_v=12"):
        rows = measure("variant=ring", "dtype=float32", "kernel=eager", "world_size=2", "reruns.explain=true",
                       f"problem.{shape}")  # fmt: skip
        found = counted(rows[rows["status"] == OK]).drop(["delta", "dsink"], errors="ignore")
        assert len(found) == 5, shape
        assert (found == 0).all(), shape
