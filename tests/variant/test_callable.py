from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from tests.measuring import TINY, configuration
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("callable")
SOMEBODY = Path(__file__).with_name("somebody.py")
LAYOUTS = {
    "contiguous": "bshd", "bhsd": "bhsd", "kvpacked": "kvpacked", "qkvpacked": "qkvpacked", "varlen": "varlen",
}  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[RealRanks]:
    ranks = RealRanks((1, 2, 3), "gloo", timeout=600.0)
    yield ranks
    ranks.close()


def words(function: str, layout: str = "bshd", *more: str) -> list[str]:
    return [*TINY, "variant=callable", f"variant.fn={SOMEBODY}:{function}", f"variant.layout={layout}",
            "world=processes", "kernel=eager", *more]  # fmt: skip


def measure(pool: RealRanks, function: str, layout: str = "bshd", *more: str) -> pd.DataFrame:
    pipeline = Pipeline("test", Cache(None, 0), pool.run)
    plans = plan(configuration(*words(function, layout, *more)), None)
    assert not [each.unsupported for each in plans if each.unsupported]
    return pd.DataFrame([row for each in plans for row in pipeline.measure(each.case).rows])


@pytest.mark.parametrize("function", LAYOUTS)
def test_every_layout_is_the_reference_in_float64(pool: RealRanks, function: str) -> None:
    """As for our own variants: 1e-12 is 10^4 units of float64 and 10^-7 of a lost key."""
    more = ["problem.heads_kv=4"] if function == "qkvpacked" else []
    rows = measure(pool, function, LAYOUTS[function], "dtype=float64", "world_size=[1,2,3]", *more)
    assert set(rows["status"]) == {"ok"}, rows["reason"].unique()
    assert set(rows["tensor"]) == {"out", "lse", "dq", "dk", "dv", "delta"}
    assert rows["error_rel"].max() < 1e-12


def test_a_function_that_gives_no_lse_has_a_row_that_says_so(pool: RealRanks) -> None:
    rows = measure(pool, "without_lse", "bshd", "dtype=float64", "world_size=2").set_index("tensor")
    assert rows.loc["lse", "status"] == "unsupported"
    assert rows.loc["lse", "reason"] == "the function returns no lse"
    assert set(rows.drop(index="lse")["status"]) == {"ok"}


def test_a_wrong_gradient_of_one_rank_is_found_there_and_nowhere_else(pool: RealRanks) -> None:
    rows = measure(pool, "rank_one_doubles_dq", "bshd", "dtype=float64", "world_size=3")
    wrong = rows[(rows["error_rel"] > 1e-12) & (rows["rank"] >= 0)]
    assert set(zip(wrong["tensor"], wrong["rank"], strict=True)) == {("dq", 1)}
    assert wrong["error_rel"].iloc[0] == pytest.approx(1.0)


def test_a_function_that_writes_to_its_inputs_fails(pool: RealRanks) -> None:
    rows = measure(pool, "writes_to_its_inputs", "bshd", "world_size=2")
    assert list(rows["status"]) == ["failed"]
    assert "wrote to its inputs" in rows["reason"].iloc[0]


WRONG = {
    "no function named": ([*TINY, "variant=callable", "world=processes"], "fn='' names no function"),
    "no such module": ([*TINY, "variant=callable", "variant.fn=nowhere.attention"], "No module named 'nowhere'"),
    "no such function": (words("nothing"), "has no function 'nothing'"),
    "unknown layout": (words("contiguous", "hsbd"), "layout='hsbd' is unknown; allowed: bshd"),
    "simulated ranks": (words("contiguous", "bshd", "world=simulated"), "use world=processes"),
    "GQA cannot be packed": (words("qkvpacked", "qkvpacked"), "needs problem.heads_kv=4, not 2"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_stops_in_one_line(mistake: str) -> None:
    overrides, message = WRONG[mistake]
    with pytest.raises(ConfigError) as caught:
        plan(configuration(*overrides), None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_function_s_file_is_part_of_what_its_rows_are_measured_by(pool: RealRanks) -> None:
    own, other = (measure(pool, name, "bshd", "world_size=1") for name in ("contiguous", "without_lse"))
    assert own["code"].iloc[0] == other["code"].iloc[0]
    assert own["code"].iloc[0].count("+") == 1
