"""Users' functions over ranks: each layout, and packed documents, of which a rank has a part of each or a slice."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.execute.plan import plan
from accuracy.verdict.label import BUGS
from tests.contract.variant import strangers_varlen
from tests.measuring import TINY, configuration, pipeline, refused
from tests.real_ranks import RealRanks
from tests.strangers import attend

pytestmark = pytest.mark.xdist_group("packages")  # they share the pool
SOMEBODY, VARLEN = (Path(__file__).with_name(f"{name}.py") for name in ("somebody", "strangers_varlen"))
LAYOUTS = {
    "contiguous": "bshd", "bhsd": "bhsd", "with_its_own_scale": "bhsd", "varlen": "thd",
    "in_the_default_group": "bshd", "without_lse": "bshd",
}  # fmt: skip


PACKED, ZIGZAG = ("thd", "problem.batch=2"), ("variant.sharding=zigzag",)
OF_TWO = (*PACKED, "problem.documents=24+40", "problem.seqlen=64")


def words(function: str, layout: str = "bshd", *more: str) -> list[str]:
    file = VARLEN if hasattr(strangers_varlen, function) else SOMEBODY
    return [*TINY, "variant=callable", f"variant.fn={file}:{function}", f"variant.layout={layout}",
            "world=processes", "kernel=eager", *more]  # fmt: skip


def measure(pool: RealRanks, function: str, layout: str, *more: str) -> pd.DataFrame:
    by, plans = pipeline(pool.run), plan(configuration(*words(function, layout, "dtype=float64", *more)), None)
    assert not [each.unsupported for each in plans if each.unsupported]
    return pd.DataFrame([row for each in plans for row in by.measure(each.case).rows])


@pytest.mark.parametrize("function", LAYOUTS)
def test_every_way_to_be_called_is_the_reference_in_float64(pool: RealRanks, function: str) -> None:
    """As for our own variants: 1e-12 is 10^4 units of float64 and 10^-7 of a lost key. Of other layouts:
    `tests/unit/api/test_calling.py`."""
    sizes = "world_size=3" if function == "in_the_default_group" else "world_size=[1,3]"
    rows = measure(pool, function, LAYOUTS[function], sizes)
    assert rows["error_rel"].max() < 1e-12
    reasons = {"lse": {"the function returns no lse"}} if function == "without_lse" else {}
    for tensor in ("out", "lse", "dq", "dk", "dv", "delta"):
        status = "unsupported" if tensor in reasons else "ok"
        found = rows[rows["tensor"] == tensor]
        assert set(found["status"]) == {status}, found["reason"].unique()
        assert set(found["reason"]) == reasons.get(tensor, set(found["reason"]))


def test_one_device_is_not_blamed_for_ranks_and_one_rank_s_fault_is_found_there(pool: RealRanks) -> None:
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
        (words("ring", *OF_TWO, "world_size=3", "problem.padding=end"), "into 3 parts: 40 is no multiple of it"),
        (words("ring", *OF_TWO, "world_size=2", "variant.sharding=30+34"), "use sharding=contiguous"),
    ):
        assert message in refused(*given)


def told(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, softcap: float = 0.0,
         window_size: tuple[int, int] = (-1, -1)) -> Tensor:  # fmt: skip
    """A stranger's, with flash-attn's words for a soft cap and a window."""
    left, right = (side if side >= 0 else k.shape[1] for side in window_size)
    ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
    seen = (ahead >= -left) & (ahead <= (0 if causal else right))
    return attend(q, k, v, scale=softmax_scale, softcap=softcap, bias=seen, wide=q.dtype)[0]


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


EVERY = ("world_size=[1,2,4]", "problem.mask=[causal,full]", "problem.seqlen=64")
LAST = ("problem.seqlen=62", "problem.padding=end", "problem.mask=full", "world_size=4")


@pytest.mark.parametrize(("function", "documents", "more"), [
    ("ring", "24+40", EVERY), ("zigzag", "24+40", (*EVERY, *ZIGZAG)), ("llama3", "24+40", EVERY),
    ("llama3", "5+38+21", EVERY), ("llama3", "", EVERY), ("llama3", "30+32", LAST),
    ("whole", "21+40+3", (*EVERY, *ZIGZAG)),  # told of all borders; padded to 24, 40 and 4 on two ranks
    ("whole_without_padding", "24+40", (*EVERY, *ZIGZAG, "variant.layout=thd_whole")),
])  # fmt: skip
def test_documents_of_every_rank_are_the_reference_in_float64(
    pool: RealRanks, function: str, documents: str, more: tuple[str, ...]
) -> None:
    """1e-12 is 10^4 units of float64 and 10^-7 of a lost key."""
    more += (f"problem.documents={documents}",) if documents else ()
    rows = measure(pool, function, *PACKED, *more)
    assert set(rows["status"]) == {"ok"}
    assert rows["error_rel"].max() < 1e-12


@pytest.mark.parametrize(("function", "documents", "more"), [
    ("whole_padding_is_counted", "21+43", (*ZIGZAG, "problem.mask=full")),
    ("a_border_is_off_by_one_on_rank_one", "24+40", ("problem.batch=1",)),
])  # fmt: skip
def test_counted_padding_and_a_border_that_one_rank_has_wrong_are_found(
    pool: RealRanks, function: str, documents: str, more: tuple[str, ...]
) -> None:
    """Rows are of the tokens that the rank has: those of the other rank's queries are right."""
    how = f"problem.documents={documents}", "problem.seqlen=64", "world_size=2", *more
    found = measure(pool, function, *PACKED, *how)
    assert {"out", "lse", "dq", "dk", "dv"} <= set(found.loc[found["error_rel"] > 1e-3, "tensor"])
    of_queries = found[found["tensor"].isin(["out", "lse", "dq"])].groupby("rank")["error_rel"].max()
    assert function == "whole_padding_is_counted" or of_queries[0] < 1e-12 < 1e-3 < of_queries[1]


def test_the_public_entries_take_documents_over_ranks_and_accuse_the_one_function_that_is_wrong() -> None:
    how = {"layout": "thd", "documents": "24+40", "seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 16}
    functions = strangers_varlen.ring, strangers_varlen.a_border_is_off_by_one_on_rank_one
    found = accuracy.diagnose(accuracy.measure(functions, world_size=2, dtype="float32", **how)).verdicts  # type: ignore[arg-type]
    assert {*found.loc[found["label"].isin(BUGS), "variant"]} == {functions[1].__name__}
