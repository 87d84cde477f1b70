"""What every variant on disk promises, ours and those of a user's folder (pytest --config-dir FOLDER)."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accuracy.core.dtype import FORMATS
from accuracy.execute.plan import LACKS
from accuracy.variant.base import Schedule, schedule_of
from tests.measuring import configuration, measure
from tests.variants import schedules, skip_if_bound_to_a_kernel

SIZES = "world_size=[1,3,4]"
EXACT = 1e-12
"""Of float64: 10^4 units, and 10^-7 of what a lost key, a neglected cap or a float32 sum would cost."""
SHAPES = {
    "causal_gqa": [], "full_gqa": ["problem.mask=full"], "causal_mqa": ["problem.heads_kv=1"],
    "full_mha": ["problem.mask=full", "problem.heads_kv=4"], "another_scale": ["problem.softmax_scale=0.77"],
}  # fmt: skip
FEATURES = {  # of Problem.features: settings at which it shows in every world size; 96 tokens
    "window": ["problem.window=[1,13]"],
    "documents": ["problem.documents=40+7+49"],
    "softcap": ["problem.softcap=1.5"],
    "sinks": ["problem.sinks=-0.5"],
    "head_dim_v": ["problem.head_dim=24", "problem.head_dim_v=16"],
    "cross_lengths": ["problem.seqlen_q=24"],
    "top_left": ["problem.seqlen_q=[24,150]", "problem.mask=causal_top_left"],
    "head_dim_v+window": ["problem.head_dim_v=24", "problem.window=4"],
    "window+documents+softcap": ["problem.window=30", "problem.documents=60+36", "problem.softcap=1.5"],
}
DO_MOST = {
    "bpt", "bpt_ring", "double_ring", "llama3", "llama3_ring", "llama3_zigzag", "single_device", "ring", "striped",
    "ulysses", "usp", "zigzag",
}  # fmt: skip
KNOBS = {
    "bpt": ["variant.bpt.query_chunk=20", "variant.bpt.key_chunk=36"],
    "bpt_ring": ["variant.bpt_ring.query_chunk=20", "variant.bpt_ring.key_chunk=7"],
    "llama3_ring": ["variant.llama3_ring.heads_stride=[1,2]"],
    "split_kv": ["variant.split_kv.splits=[1,2,5,7,96]"],  # 5 and 7 do not divide 96 keys; 96: a key a part
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--config-dir")
        metafunc.parametrize("variant", schedules(*([folder] if folder else [])))


@pytest.fixture
def folders(pytestconfig: pytest.Config) -> list[Path]:
    folder: Path | None = pytestconfig.getoption("--config-dir")
    return [folder.resolve()] if folder else []


@pytest.fixture
def run(variant: str, folders: list[Path]):
    skip_if_bound_to_a_kernel(variant, *folders)

    def measured(*words: str, sizes: str = SIZES, dtype: str = "float64") -> pd.DataFrame:
        # others beside it can use every setting, so that a variant need not support all
        names = ",".join(dict.fromkeys((variant, "ring", "single_device")))
        given = [f"variant=[{names}]", sizes, f"dtype={dtype}", *KNOBS.get(variant, []), "unusable=record", *words]
        results = measure(*given, folders=folders, only=variant)
        assert set(results["status"]) <= {"ok", "unsupported"}, results["reason"].unique()
        return results

    return measured


@pytest.fixture
def stated(variant: str, folders: list[Path]) -> tuple[Schedule, Schedule]:
    (chosen,) = configuration(f"variant={variant}", folders=folders).variants
    return schedule_of(chosen.forward), schedule_of(chosen.backward)


def assert_exact(results: pd.DataFrame) -> pd.DataFrame:
    measured = results[results["status"] == "ok"]
    worst = measured.loc[measured["error_rel"].idxmax()]
    assert worst["error_rel"] < EXACT, worst[["tensor", "rank", "world_size", "error_rel"]].to_dict()
    return measured


@pytest.mark.stress(20, "variant", "shape")
@pytest.mark.parametrize("shape", SHAPES)
def test_in_float64_it_is_the_reference_on_every_rank_and_tensor(variant: str, run, shape: str, stated) -> None:
    results, gradients = run(*SHAPES[shape]), {"dq", "dk", "dv"} if stated[1].gradients else set()
    assert set(assert_exact(results)["tensor"]) == {"out", "lse", "delta"} | gradients
    reasons = {reason for reason in results["reason"] if str(reason).startswith("the variant returns no")}
    assert reasons == {f"the variant returns no {name}" for name in {"dq", "dk", "dv"} - gradients}


@pytest.mark.stress(20, "variant", "feature")
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("feature", FEATURES)
def test_in_float64_every_feature_is_right_or_unsupported(variant: str, run, feature: str, mask: str, stated) -> None:
    results, needed = run(f"problem.mask={mask}", *FEATURES[feature]), set(feature.split("+"))
    if needed <= set(stated[0].features) & set(stated[1].features):
        assert_exact(results)
    else:
        assert variant not in DO_MOST or not needed <= {"window", "documents", "softcap"}
        reasons = results["reason"]
        assert reasons.str.contains("has no |takes (?:as many|values as wide)").any(), reasons.unique()


@pytest.mark.stress(8, "mask")
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_in_float64_it_is_the_reference_on_lengths_that_ranks_cannot_share(variant: str, run, mask: str) -> None:
    """97 tokens: of the last rank, of 9 ranks of the last two or more, some or all tokens are padding."""
    results = run("problem.seqlen=97", "problem.padding=end", f"problem.mask={mask}", sizes="world_size=[1,4,9]")
    if (results["status"] == "ok").any():
        assert_exact(results)
    else:
        assert mask == "full"
        assert results["reason"].str.contains("causal|has no packed documents").all(), results["reason"].unique()


def test_every_feature_of_a_problem_is_asked_for() -> None:
    """But for a caller's mask, which no words of a command line can give."""
    assert {name for name in FEATURES if "+" not in name} == set(LACKS) - {"attn_mask"}


@pytest.mark.stress(4)
def test_errors_fall_with_the_unit_roundoff(run) -> None:
    """Rounding is proportional to u: slope 1 of log error over log u; a fault or a hard-coded cast is flat: slope 0.

    Halfway between, 0.5, is the bound. lse is kept in float32 for all inputs but float64, so it is held there only.
    """
    results = run(sizes="world_size=[1,4]", dtype="[bfloat16,float16,float32,float64]")
    results = results[(results["status"] == "ok") & (results["rank"] == -1)]
    errors = results.groupby(["tensor", "world_size", "dtype"])["error_rel"].max().unstack()
    for coarse, fine in (("bfloat16", "float16"), ("float16", "float32"), ("float32", "float64")):
        held = errors if fine == "float64" else errors.drop(index="lse")
        bits = FORMATS[fine].precision - FORMATS[coarse].precision
        slope = np.log2(held[coarse] / held[fine]) / bits
        assert (slope > 0.5).all(), (coarse, fine, slope.to_dict())


@pytest.mark.stress(9, "word")
@pytest.mark.parametrize("word", ["merge=logsumexp", "merge=double", "merge=compensated", "ring_order=diagonal_last",
                                  "ring_direction=previous"])  # fmt: skip
def test_formula_order_and_direction_change_no_meaning(run, word: str, stated) -> None:
    if word.partition("=")[0] not in (*stated[0].forward_places, *stated[1].backward_places):
        pytest.skip("joins no partials, or has no ring in its forward")
    assert_exact(run(f"precision.{word}", sizes="world_size=4"))
