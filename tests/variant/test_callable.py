from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.core.errors import ConfigError, NotShared
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime.collectives import shared
from tests.measuring import TINY, configuration
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("callable")
SOMEBODY = Path(__file__).with_name("somebody.py")
LAYOUTS = {
    "contiguous": "bshd", "bhsd": "bhsd", "with_its_own_scale": "bhsd", "kvpacked": "kvpacked",
    "qkvpacked": "qkvpacked", "varlen": "varlen",
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


def test_a_function_of_one_device_is_not_blamed_for_what_ranks_would_share(pool: RealRanks) -> None:
    rows = measure(pool, "of_one_device", "bshd", "dtype=float64", "world_size=[1,3]")
    assert set(rows.loc[rows["world_size"] == 1, "status"]) == {"ok"}
    assert set(rows.loc[rows["world_size"] == 3, "status"]) == {"unsupported"}
    assert "use world_size=1, or give it a group" in rows.loc[rows["world_size"] == 3, "reason"].iloc[0]


def test_a_callable_without_a_hash_is_asked_too() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
            return q

    group: Any = SimpleNamespace(size=lambda: 2)
    with pytest.raises(NotShared, match="use world_size=1"):
        shared(Unhashable(), group, lambda: torch.ones(1) + 1)


def test_a_function_in_the_default_group_is_measured_on_its_ranks(pool: RealRanks) -> None:
    rows = measure(pool, "in_the_default_group", "bshd", "dtype=float64", "world_size=3")
    assert set(rows["status"]) == {"ok"}, rows["reason"].unique()
    assert rows["error_rel"].max() < 1e-12


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
    "a function that cannot be told the mask": (words("without_mask"), "has no parameter causal or is_causal"),
    "a function that wants more": (words("wants_a_mask"), "missing a required argument: 'mask'"),
    "another scale than the function's own": (
        words("with_its_own_scale", "bhsd", "problem.softmax_scale=0.5"),
        "takes no softmax_scale",
    ),
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


def told(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, softcap: float = 0.0,
         window_size: tuple[int, int] = (-1, -1)) -> Tensor:  # fmt: skip
    """A stranger's, with flash-attn's words for a soft cap and a window."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
    hidden = (ahead > 0) & causal
    hidden |= (window_size[0] >= 0) & (ahead < -window_size[0])
    hidden |= (window_size[1] >= 0) & (ahead > window_size[1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def window_is_short(*tensors: Tensor, window_size: tuple[int, int] = (-1, -1), **how: Any) -> Tensor:
    return told(*tensors, window_size=(window_size[0] - (window_size[0] > 0), window_size[1]), **how)


def packed(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how: Any) -> Tensor:
    """A stranger's, of packed sequences (T, H, D)."""
    ends = cu_seqlens.tolist()
    assert max_seqlen == max(b - a for a, b in pairwise(ends))
    return torch.cat([told(*(x[None, a:b] for x in (q, k, v)), **how)[0] for a, b in pairwise(ends)])


def test_a_function_is_given_the_window_cap_and_documents_that_it_has_words_for() -> None:
    for fn, features in (
        (told, {"window": 5}), (told, {"window": 3, "mask": "full"}), (told, {"softcap": 2.0}),
        (packed, {"documents": "9+1+14", "batch": 2}),
    ):  # fmt: skip
        layout = "varlen" if fn is packed else "bshd"
        shape = {"seqlen": 24, "heads": 4, "heads_kv": 2, "head_dim": 8, **features}
        found = accuracy.measure(fn, dtype="float64", layout=layout, device="cpu", **shape)  # type: ignore[arg-type]
        numbers = found[found["tensor"] != "lse"]
        assert set(numbers["status"]) == {"ok"}, numbers["reason"].unique()
        assert numbers["error_rel"].max() < 1e-12
    found = accuracy.measure(window_is_short, dtype="float64", device="cpu", window=5, seqlen=24)
    assert found.loc[found["tensor"] == "out", "error_rel"].max() > 1e-2
