import math

import pytest

from accuracy.results import table
from accuracy.variant.base import schedule_of
from experiments.depth import weights as trained
from experiments.depth.attention import Ranks
from experiments.depth.table import SCHEMA, STACK
from tests.measuring import configuration
from tests.unit.experiments.depth.stacks import measured
from tests.variants import schedules, skip_if_bound_to_a_kernel

EXACT = 1e-12
"""`test_reference.SUMS` for the stack, as much again for the merges of 4 blocks, and twice that for cancellation in
sums that are up to twice smaller than their terms."""


@pytest.mark.stress(8)
@pytest.mark.parametrize("variant", schedules())
def test_in_float64_every_variant_is_exact(variant: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    if not schedule_of(configuration(f"variant={variant}").variants[0].backward).gradients:
        pytest.skip("for inference only")
    rows = measured(f"variant={variant}", "dtype=float64", "world_size=[1,2,3,4]")
    unsupported = rows["status"] == table.UNSUPPORTED  # of one device, or heads that do not divide
    assert set(rows.loc[~unsupported, "status"]) == {table.OK}
    assert rows.loc[~unsupported, "error_rel"].max() < EXACT


def test_a_wrong_backward_shows_in_every_gradient_below_and_in_no_output() -> None:
    stale = [f"+variant.wrong.{way}=tests.unit.fault.planted:bpt_stale_buffer" for way in ("forward", "backward")]
    rows = measured("variant=[]", *stale, "+variant.wrong.sharding=contiguous", "dtype=float64", "world_size=4")
    forward = rows["tensor"].isin(("x", "loss"))
    assert rows.loc[forward, "error_rel"].max() < EXACT
    assert rows.loc[(rows["tensor"] == "dx"), "error_rel"].min() > 1e-3
    assert rows.loc[rows["tensor"] == "d_query", "error_rel"].min() > 1e-3


def test_every_layer_and_tensor_has_a_row_and_every_row_all_numbers() -> None:
    """A deeper stack begins with the layers of a shallower one; single device is no further off than itself."""
    rows = measured("variant=ring", "world_size=2")
    deeper = measured("variant=single_device", "world_size=1", "stack.layers=4")
    assert (deeper["x_single_device"].dropna() == 1).all()
    assert (deeper["diff_rel"] == 0).all()
    outputs = (each[(each["tensor"] == "x") & (each["layer"] <= 3)]["reference_value"] for each in (rows, deeper))
    assert len({tuple(each) for each in outputs}) == 1
    expected = {(layer, name) for layer in (1, 2, 3) for name in ("x", "dx", "d_query", "d_key", "d_value", "d_output")}
    expected |= {(3, "loss"), (3, "gradient_norm")}
    assert set(zip(rows["layer"], rows["tensor"], strict=True)) == expected
    assert len(rows) == len(expected)
    numbers = ["error_rel", "single_device_rel", "x_single_device", "diff_rel", "nonfinite", "seconds"]
    assert rows[[*STACK, "exact_rel", "x_exact", *numbers]].notna().all(axis=None)
    assert set(rows["rank"]) == {table.ALL_RANKS}
    assert set(rows) <= set(SCHEMA.names)


def test_each_layer_of_a_stack_drops_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the stack, in its reference, on one device and on every rank, and again in the backward."""
    words = ("variant=[ring,llama3]", "world_size=2", "dtype=float64", "problem.dropout=0.3")
    rows = measured(*words)
    assert set(rows["status"]) == {table.OK}
    assert rows["error_rel"].max() < EXACT
    monkeypatch.setattr(Ranks, "at", lambda self, layer: self)  # of all layers alike
    assert measured(*words)["error_rel"].max() > 1e-2


FITTING = (
    "stack.weights=trained", "stack.width=64", "stack.feed_forward=192", "stack.vocabulary=256", "problem.seqlen=128",
    "problem.batch=1", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=32", "variant=ring", "world_size=4",
)  # fmt: skip


def test_it_predicts_text_that_it_was_not_trained_on() -> None:
    """Much better than knowing nothing (ln 256 nats a byte); in bfloat16 over a ring off by less than one rounding."""
    rows = measured(*FITTING, f"stack.layers={trained.LAYERS}")
    loss = rows[rows["tensor"] == "loss"].iloc[0]
    assert loss["reference_value"] < math.log(256) / 2
    assert loss["error_rel"] < 2**-8
