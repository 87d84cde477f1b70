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

SIZES = "world_size=[1,2,3,4]"
SHAPES = {
    "causal_gqa": [], "full_gqa": ["problem.mask=full"], "causal_mqa": ["problem.heads_kv=1"],
    "full_mha": ["problem.mask=full", "problem.heads_kv=4"], "another_scale": ["problem.softmax_scale=0.77"],
}  # fmt: skip
FEATURES = {  # of Problem.features: settings at which it shows in every world size; 96 tokens
    "window": ["problem.window=13"],
    "documents": ["problem.documents=40+7+49"],
    "softcap": ["problem.softcap=1.5"],
    "sinks": ["problem.sinks=-0.5"],
    "dropout": ["problem.dropout=0.2"],
    "head_dim_v": ["problem.head_dim=24", "problem.head_dim_v=16"],
    "cross_lengths": ["problem.seqlen_q=24"],
    "top_left": ["problem.seqlen_q=24", "problem.mask=causal_top_left"],
}
SMALL_CHUNKS = {"bpt": ["variant.bpt.query_chunk=20", "variant.bpt.key_chunk=36"],
                "llama3_ring": ["variant.llama3_ring.heads_stride=[1,2]"],
    "bpt_ring": ["variant.bpt_ring.query_chunk=20", "variant.bpt_ring.key_chunk=7"]}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--config-dir")
    if "variant" not in metafunc.fixturenames:
        return
    metafunc.parametrize("variant", schedules(*([folder] if folder else [])))


@pytest.fixture
def run(variant: str, request: pytest.FixtureRequest):
    folder: Path | None = request.config.getoption("--config-dir")
    skip_if_bound_to_a_kernel(variant, *([folder] if folder else []))

    def measured(*overrides: str) -> pd.DataFrame:
        # the ring beside it can use every world size, so that a variant of one device need not support all
        names = variant if variant == "ring" else f"[{variant},ring]"
        words = [f"variant={names}", SIZES, *SMALL_CHUNKS.get(variant, []), "unusable=record", *overrides]
        results = measure(*words, folders=[folder.resolve()] if folder else [])
        results = results[results["variant"] == variant]
        assert not (results["status"] == "failed").any(), results["reason"].unique()
        assert (results["status"] == "ok").any(), results["reason"].unique()
        return results[results["status"] == "ok"]

    return measured


def stated(variant: str, request: pytest.FixtureRequest) -> tuple[Schedule, Schedule]:
    folder: Path | None = request.config.getoption("--config-dir")
    (chosen,) = configuration(f"variant={variant}", folders=[folder.resolve()] if folder else []).variants
    return schedule_of(chosen.forward), schedule_of(chosen.backward)


def places(variant: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    forward, backward = stated(variant, request)
    return (*forward.forward_places, *backward.backward_places)


@pytest.mark.stress(20, "variant", "shape")
@pytest.mark.parametrize("shape", SHAPES)
def test_in_float64_it_is_the_reference_on_every_rank_and_tensor(variant: str, run, shape: str, request) -> None:
    """1e-12 is 10^4 units of float64 and 10^-7 of what a lost key or a float32 sum would cost."""
    results = run("dtype=float64", *SHAPES[shape])
    gradients = {"dq", "dk", "dv"} if stated(variant, request)[1].gradients else set()
    assert set(results["tensor"]) == {"out", "lse", "delta"} | gradients
    worst = results.loc[results["error_rel"].idxmax()]
    assert worst["error_rel"] < 1e-12, worst[["tensor", "rank", "world_size", "error_rel"]].to_dict()


@pytest.mark.stress(20, "variant", "feature")
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("feature", FEATURES)
def test_in_float64_it_is_the_reference_with_every_feature_that_it_states(
    variant: str, run, feature: str, mask: str, request
) -> None:
    if any(feature not in schedule.features for schedule in stated(variant, request)):
        pytest.skip(f"does not state {feature}")
    words = [f"problem.mask={mask}", *FEATURES[feature]]
    assert run("dtype=float64", *words)["error_rel"].max() < 1e-12


@pytest.mark.stress(8, "mask")
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_in_float64_it_is_the_reference_on_lengths_that_ranks_cannot_share(variant: str, mask: str, request) -> None:
    """97 tokens: of the last rank, of 5 and 9 ranks of the last two or more, some or all tokens are padding."""
    folder: Path | None = request.config.getoption("--config-dir")
    skip_if_bound_to_a_kernel(variant, *([folder] if folder else []))
    words = ("problem.seqlen=97", "problem.padding=end", f"problem.mask={mask}", "world_size=[1,2,4,5,9]")
    names = variant if variant == "ring" else f"[{variant},ring]"
    results = measure(f"variant={names}", *words, *SMALL_CHUNKS.get(variant, []), "dtype=float64", "unusable=record",
                      folders=[folder.resolve()] if folder else [])  # fmt: skip
    results = results[results["variant"] == variant]
    assert set(results["status"]) <= {"ok", "unsupported"}, results["reason"].unique()
    if (results["status"] == "ok").any():
        assert results["error_rel"].max() < 1e-12
    else:
        assert mask == "full"
        assert results["reason"].str.contains("causal|has no packed documents").all(), results["reason"].unique()


def test_every_feature_of_a_problem_is_asked_for() -> None:
    assert set(FEATURES) == set(LACKS)


@pytest.mark.stress(4)
def test_errors_fall_with_the_unit_roundoff(run) -> None:
    """Rounding is proportional to u: slope 1 of log error over log u; a fault or a hard-coded cast is flat: slope 0.

    Halfway between, 0.5, is the bound. lse is kept in float32 for all inputs but float64, so it is held there only.
    """
    results = run("dtype=[bfloat16,float16,float32,float64]")
    errors = results[results["rank"] == -1].groupby(["tensor", "world_size", "dtype"])["error_rel"].max().unstack()
    for coarse, fine in (("bfloat16", "float16"), ("float16", "float32"), ("float32", "float64")):
        held = errors if fine == "float64" else errors.drop(index="lse")
        bits = FORMATS[fine].precision - FORMATS[coarse].precision
        slope = np.log2(held[coarse] / held[fine]) / bits
        assert (slope > 0.5).all(), (coarse, fine, slope.to_dict())


@pytest.mark.stress(10, "merge")
@pytest.mark.parametrize("merge", ["logsumexp", "double", "compensated"])
def test_every_merge_formula_is_the_same_function(variant: str, run, merge: str, request) -> None:
    if "merge" not in places(variant, request):
        pytest.skip("joins no partials")
    assert run("dtype=float64", f"precision.merge={merge}")["error_rel"].max() < 1e-12


@pytest.mark.stress(10, "order", "direction")
@pytest.mark.parametrize("order", ["diagonal_first", "diagonal_last"])
@pytest.mark.parametrize("direction", ["next", "previous"])
def test_direction_and_order_of_the_ring_change_no_meaning(
    variant: str, run, order: str, direction: str, request
) -> None:
    if "ring_order" not in places(variant, request):
        pytest.skip("has no ring in its forward")
    words = f"precision.ring_order={order}", f"precision.ring_direction={direction}"
    assert run("dtype=float64", *words)["error_rel"].max() < 1e-12
