from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.execute.plan import plan
from tests.measuring import TINY, configuration, pipeline, refused
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")  # they share the pool
SOMEBODY = Path(__file__).with_name("somebody.py")
LAYOUTS = {
    "contiguous": "bshd", "bhsd": "bhsd", "with_its_own_scale": "bhsd", "kvpacked": "kvpacked",
    "qkvpacked": "qkvpacked", "sbhd": "sbhd", "varlen": "thd", "in_the_default_group": "bshd", "without_lse": "bshd",
}  # fmt: skip


def words(function: str, layout: str = "bshd", *more: str) -> list[str]:
    return [*TINY, "variant=callable", f"variant.fn={SOMEBODY}:{function}", f"variant.layout={layout}",
            "world=processes", "kernel=eager", *more]  # fmt: skip


def measure(pool: RealRanks, function: str, layout: str, *more: str) -> pd.DataFrame:
    by, plans = pipeline(pool.run), plan(configuration(*words(function, layout, "dtype=float64", *more)), None)
    assert not [each.unsupported for each in plans if each.unsupported]
    return pd.DataFrame([row for each in plans for row in by.measure(each.case).rows])


@pytest.mark.parametrize("function", LAYOUTS)
def test_every_layout_is_the_reference_in_float64(pool: RealRanks, function: str) -> None:
    """As for our own variants: 1e-12 is 10^4 units of float64 and 10^-7 of a lost key."""
    more = ["problem.heads_kv=4"] if function == "qkvpacked" else []
    sizes = "world_size=3" if function == "in_the_default_group" else "world_size=[1,3]"
    rows = measure(pool, function, LAYOUTS[function], sizes, *more)
    assert rows["error_rel"].max() < 1e-12
    reasons = {"lse": {"the function returns no lse"}} if function == "without_lse" else {}
    for tensor in ("out", "lse", "dq", "dk", "dv", "delta"):
        status = "unsupported" if tensor in reasons else "ok"
        found = rows[rows["tensor"] == tensor]
        assert set(found["status"]) == {status}, found["reason"].unique()
        assert set(found["reason"]) == reasons.get(tensor, set(found["reason"]))


def test_one_device_is_not_blamed_for_ranks_and_one_rank_s_fault_is_found_there(
    pool: RealRanks,
) -> None:
    rows = measure(pool, "of_one_device", "bshd", "world_size=[1,3]").set_index("world_size")
    assert set(rows.loc[1, "status"]) == {"ok"}
    assert rows.loc[3, "status"] == "unsupported"
    assert "use world_size=1, or give it a group" in rows.loc[3, "reason"]
    rows = measure(pool, "rank_one_doubles_dq", "bshd", "world_size=3")
    wrong = rows[(rows["error_rel"] > 1e-12) & (rows["rank"] >= 0)]
    assert wrong[["tensor", "rank"]].to_numpy().tolist() == [["dq", 1]]
    assert wrong["error_rel"].iloc[0] == pytest.approx(1.0)


def test_a_mistake_stops_in_one_line() -> None:
    nobody = [*TINY, "variant=callable"]
    for given, message in (
        ([*nobody, "world=processes"], "fn='' names no function"),
        ([*nobody, "variant.fn=nowhere.attention"], "No module named 'nowhere'"),
        (words("nothing"), "has no function 'nothing'"),
        (words("without_mask"), "has no parameter causal or is_causal"),
        (words("wants_a_mask"), "cannot be called without attn_mask"),
        (words("with_its_own_scale", "bhsd", "problem.softmax_scale=0.5"), "takes no softmax_scale"),
        (words("contiguous", "hsbd"), "layout 'hsbd' is unknown; allowed: bhsd"),
        (words("contiguous", "bshd", "world=simulated"), "use world=processes"),
        (words("qkvpacked", "qkvpacked"), "needs problem.heads_kv=4, not 2"),
    ):
        assert message in refused(*given)


def told(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, softcap: float = 0.0,
         window_size: tuple[int, int] = (-1, -1)) -> Tensor:  # fmt: skip
    """A stranger's, with flash-attn's words for a soft cap and a window."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
    hidden = (ahead > 0) & causal
    hidden |= (window_size[0] >= 0) & (ahead < -window_size[0])
    hidden |= (window_size[1] >= 0) & (ahead > window_size[1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def window_is_short(*tensors: Tensor, window_size: tuple[int, int] = (-1, -1), **how: Any) -> Tensor:
    return told(*tensors, window_size=(window_size[0] - 1, window_size[1]), **how)


def test_a_function_is_given_the_window_and_cap_that_it_has_words_for() -> None:
    how = {"dtype": "float64", "device": "cpu", "seqlen": 24, "heads": 4, "heads_kv": 4, "head_dim": 8}
    for fn, features in (
        (told, {"window": 3, "mask": "full"}), (told, {"window": 5, "softcap": 2.0}), (window_is_short, {"window": 5}),
    ):  # fmt: skip
        found = accuracy.measure(fn, **how, **features)  # type: ignore[arg-type]
        numbers = found[found["tensor"] != "lse"]
        assert set(numbers["status"]) == {"ok"}, numbers["reason"].unique()
        worst = numbers["error_rel"].max()
        assert worst > 1e-2 if fn is window_is_short else worst < 1e-12, features
