from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.core.case import Problem
from accuracy.core.masks import Visibility
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime.dropout import Dropout
from tests import planting
from tests.measuring import TINY, configuration, measure
from tests.variant.test_contract import SMALL_CHUNKS
from tests.variants import schedules, skip_if_bound_to_a_kernel

PROBLEMS = {
    "window": ["problem.window=10"],
    "window_of_two": ["problem.window=1"],
    "window_to_both_sides": ["problem.window=37", "problem.mask=full"],
    "documents": ["problem.documents=10+1+49+36"],
    "documents_without_causality": ["problem.documents=60+36", "problem.mask=full"],
    "window_in_documents": ["problem.documents=10+50+36", "problem.window=7", "problem.mask=full"],
    "softcap": ["problem.softcap=0.7"],
    "all": ["problem.softcap=1.5", "problem.window=30", "problem.documents=60+36"],
}
DO_ALL = {
    "bpt", "bpt_ring", "double_ring", "llama3", "llama3_ring", "llama3_zigzag", "single_device", "ring", "striped",
    "ulysses", "usp", "zigzag",
}  # fmt: skip


def run(variant: str, *words: str) -> pd.DataFrame:
    skip_if_bound_to_a_kernel(variant)
    names = variant if variant == "single_device" else f"[{variant},single_device]"
    given = ["world_size=[1,4]", f"variant={names}", *SMALL_CHUNKS.get(variant, []), "dtype=float64", "unusable=record"]
    results = measure(*given, *words)
    results = results[results["variant"] == variant]
    assert not (results["status"] == "failed").any(), results["reason"].unique()
    return results


@pytest.mark.stress(12, "problem")
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("variant", schedules())
def test_in_float64_it_is_the_reference_or_unsupported(variant: str, problem: str) -> None:
    """1e-12 is 10^4 units of float64 and 10^-7 of what a lost key or a neglected cap would cost."""
    results = run(variant, *PROBLEMS[problem], "device=cpu")
    measured = results[results["status"] == "ok"]
    if measured.empty:
        assert variant not in DO_ALL
        assert results["reason"].str.contains("has no |takes as many").any()
        return
    worst = measured.loc[measured["error_rel"].idxmax()]
    assert worst["error_rel"] < 1e-12, worst[["tensor", "rank", "world_size", "error_rel"]].to_dict()


@pytest.mark.parametrize("queries", [2, 40, 150])
def test_a_mask_aligned_at_the_top_left_is_the_reference_or_unsupported(queries: int) -> None:
    words = ("problem.mask=causal_top_left", f"problem.seqlen_q={queries}", "kernel=[eager,torch_flash]")
    results = run("single_device", *words, "world_size=1")
    assert (results["mask"] == "causal_top_left").all()
    assert results["error_rel"].max() < 1e-12
    unsupported = run("split_kv", *words, "world_size=1")
    assert set(unsupported["reason"]) == {
        "variant split_kv has no mask aligned at the top left: drop problem.mask=causal_top_left or use"
        " variant=single_device world_size=1"
    }


def test_an_error_of_the_mask_is_seen(tmp_path: Path) -> None:
    planting.slip(tmp_path, "ring", "in found:", "in found[-1:]:")
    words = ("variant=broken", "world_size=2", "dtype=float64", "problem.documents=10+50+36")
    results = measure(*words, folders=[tmp_path])
    worst = results[(results["rank"] == -1)].set_index("tensor")["error_rel"]
    assert worst[["out", "dq"]].min() > 1e-2


def test_a_gradient_of_the_sinks_that_lacks_ranks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("variant=ring", "world_size=2", "dtype=float64", "problem.sinks=1")
    assert measure(*words).set_index("tensor").loc["dsink", "error_rel"].max() < 1e-12
    monkeypatch.setattr("accuracy.kernel.block.sink.total", lambda parts: parts[0])
    assert measure(*words).set_index("tensor").loc["dsink", "error_rel"].min() > 1e-2


@pytest.mark.parametrize("variant", ["ring", "striped", "ulysses"])
def test_a_rank_that_drops_by_its_own_positions_is_seen(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or by its own heads: what a generator that starts anew on every rank does."""
    words = (f"variant={variant}", "world_size=2", "dtype=float64", "problem.dropout=0.2")
    assert measure(*words)["error_rel"].max() < 1e-12
    tokens, heads = Dropout.at, Dropout.of_heads
    monkeypatch.setattr(Dropout, "at", lambda own, queries, keys: tokens(own, *map(_from_zero, (queries, keys))))
    monkeypatch.setattr(Dropout, "of_heads", lambda own, first: own if first >= 2 else heads(own, first))
    found = measure(*words).set_index("tensor")["error_rel"]
    assert found[["out", "dq", "dk", "dv"]].groupby("tensor").max().min() > 1e-2


def _from_zero(tokens: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(tokens))


def test_padding_that_is_seen_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros as keys of a full mask: what a schedule does that takes padding for tokens."""
    words = ("variant=ring", "world_size=2", "dtype=float64", "problem.seqlen=95", "problem.padding=end",
             "problem.mask=full")  # fmt: skip
    assert measure(*words)["error_rel"].max() < 1e-12
    monkeypatch.setattr(Problem, "visibility", Visibility(causal=False))
    found = measure(*words).set_index("tensor")["error_rel"]
    assert found[["out", "dq", "dk", "dv"]].groupby("tensor").max().min() > 1e-3


def test_padding_is_not_measured_but_must_be_finite(tmp_path: Path) -> None:
    """Of 33 tokens two ranks have 17 and 16; a mean is over those. The out of padding is thrown away."""
    words = ("world_size=2", "dtype=float32", "problem.seqlen=33", "problem.padding=end")
    plain = measure("variant=ring", *words).set_index(["tensor", "rank"])
    assert plain["worst_token"].max() < 33
    for name, count in ((0, 17), (1, 16)):
        row = plain.loc[("out", name)]
        assert row["reference_rms"] ** 2 * count == pytest.approx(_norm_square(name, words), rel=1e-9)
    for value, status in (("7.0", "ok"), ("float('nan')", "failed")):
        returned = "running.result(rank.dtype, rank.lse_dtype)"
        changed = (
            f"out, lse = {returned}\n        out[:, 33 - 17 * rank.world.rank :] = {value}\n        return out, lse"
        )
        planting.slip(tmp_path / status, "ring", f"return {returned}", changed)
        found = measure("variant=broken", *words, folders=[tmp_path / status])
        assert set(found["status"]) == {status}
        if status == "ok":
            found = found.set_index(["tensor", "rank"])
            assert (found.loc["out", "error_rel"] == plain.loc["out", "error_rel"]).all()


def _norm_square(rank: int, words: tuple[str, ...]) -> float:
    """Of a rank's tokens of the reference, per element of a token."""
    (planned,) = plan(configuration(*TINY, "variant=ring", *words), None)
    pipeline = Pipeline("", Cache(None, 0.0))
    out = pipeline.targets(planned.case).reference["out"]
    mine = out[:, :17] if rank == 0 else out[:, 17:]
    return float(mine.square().sum()) / (mine.numel() / mine.shape[1])


def test_a_mask_is_told_in_the_table() -> None:
    results = measure("variant=single_device", "world_size=1", "problem.window=9", "problem.documents=50+46",
                      "problem.softcap=3")  # fmt: skip
    assert set(results["mask"]) == {"causal,window=9,documents=50+46"}
    assert set(results["softcap"]) == {3.0}


def test_settings_that_change_nothing_are_the_same_case_and_a_window_of_one_token_is_another() -> None:
    """A window as wide as the sequence, one document, an alignment of as many queries as keys."""
    plain = measure("variant=single_device", "world_size=1")["case_id"].unique()
    for words in ("problem.window=95", "problem.documents=96", "problem.mask=causal_top_left", "problem.seqlen_q=96"):
        assert measure("variant=single_device", "world_size=1", words)["case_id"].unique() == plain
    assert measure("variant=single_device", "world_size=1", "problem.window=0")["case_id"].unique() != plain


@pytest.mark.stress
@pytest.mark.parametrize("variant", ["ring", "zigzag", "striped", "llama3", "bpt_ring"])
def test_256_ranks_of_few_tokens_agree_with_the_reference(variant: str) -> None:
    """Float64: sums over up to 256 blocks; 1e-12 as in the contract."""
    few = ("problem.seqlen=512", "problem.batch=1", "problem.heads=2", "problem.heads_kv=1")
    results = measure(f"variant={variant}", "world_size=256", "dtype=float64", *few)
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 1e-12
    assert set(results["rank"]) == {-1, *range(256)}


UNEVEN = ("problem.seqlen=96", "world_size=3", "dtype=float64")
MASKS = {
    "causal": (), "full, with dropout": ("problem.mask=full", "problem.dropout=0.3"), "window": ("problem.window=7",),
    "documents": ("problem.documents=30+41+25", "problem.softcap=2.0"),
}  # fmt: skip


@pytest.mark.stress(5, "variant", "mask")
@pytest.mark.parametrize("lengths", ["40+20+36", "1+94+1"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("variant", ["ring", "llama3", "llama3_ring"])
def test_ranks_may_hold_unequally_many_tokens(variant: str, mask: str, lengths: str) -> None:
    found = measure(f"variant={variant}", f"variant.{variant}.sharding={lengths}", *UNEVEN, *MASKS[mask])
    assert set(found["status"]) == {"ok"}
    assert found["error_rel"].max() < 1e-12
    assert (found["worst_token"] < 96).all()


def test_a_rank_that_takes_the_others_to_hold_as_many_tokens_is_seen(tmp_path: Path) -> None:
    """A rank's mean and norm are over its own tokens, of which the least has 20 of the 40 of the largest."""
    words = ("variant.SELF.sharding=40+20+36", *UNEVEN)
    plain = measure("variant=ring", *(word.replace("SELF", "ring") for word in words)).set_index(["tensor", "rank"])
    begins = {0: 0, 1: 40, 2: 60}
    (planned,) = plan(configuration(*TINY, "variant=ring", "variant.ring.sharding=40+20+36", *UNEVEN), None)
    whole = Pipeline("", Cache(None, 0.0)).targets(planned.case).reference["out"]
    for rank, length in enumerate((40, 20, 36)):
        mine = whole[:, begins[rank] : begins[rank] + length]
        assert plain.loc[("out", rank), "reference_rms"] ** 2 == pytest.approx(float(mine.square().mean()), rel=1e-9)
    planting.slip(tmp_path, "ring", "yield met, ring.blocks(rank, source, k.shape[1]), travelling[0]",
                  "yield met, [Block(each.query, slice(0, min(each.key.stop, k.shape[1])), False) for each in"
                  " ring.blocks(rank, source, k.shape[1])], travelling[0]")  # fmt: skip
    words = ("problem.mask=full", *(word.replace("SELF", "broken") for word in words))
    found = measure("variant=broken", *words, folders=[tmp_path])
    assert found["error_rel"].max() > 1e-3
