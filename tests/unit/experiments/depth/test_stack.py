import pytest

from accuracy.results import table
from accuracy.variant.base import schedule_of
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


def test_a_stack_in_bfloat16_rounds_as_bfloat16_does() -> None:
    """Not exact, not wrong: between the rounding of one number and that of every one of some hundred, u = 2^-8."""
    rows = measured("variant=[ring,zigzag]", "dtype=bfloat16", "world_size=4")
    errors = rows.loc[rows["tensor"] != "loss", "error_rel"]
    assert errors.min() > 0
    assert 1e-3 < errors.median() < 100 * 2**-8


def test_a_wrong_backward_shows_in_every_gradient_below_and_in_no_output() -> None:
    stale = [f"+variant.wrong.{way}=tests.unit.fault.planted:bpt_stale_buffer" for way in ("forward", "backward")]
    rows = measured("variant=[]", *stale, "+variant.wrong.sharding=contiguous", "dtype=float64", "world_size=4")
    forward = rows["tensor"].isin(("x", "loss"))
    assert rows.loc[forward, "error_rel"].max() < EXACT
    assert rows.loc[(rows["tensor"] == "dx"), "error_rel"].min() > 1e-3
    assert rows.loc[rows["tensor"] == "d_query", "error_rel"].min() > 1e-3


def test_a_right_forward_on_a_wrong_kernel_backward_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest slip: one gradient of one rank scaled by 1 + 1e-9."""
    from accuracy.variant import ulysses

    healthy = ulysses.Ulysses.backward

    async def slipped(self, rank, *tensors):  # type: ignore[no-untyped-def]
        dq, dk, dv = await healthy(self, rank, *tensors)
        return (dq * (1 + 1e-9) if rank.world.rank == 1 else dq), dk, dv

    monkeypatch.setattr(ulysses.Ulysses, "backward", slipped)
    rows = measured("variant=ulysses", "dtype=float64", "world_size=2")
    assert rows.loc[rows["tensor"] == "d_query", "error_rel"].min() > 100 * EXACT


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
    numbers = ["error_rel", "single_device_rel", "x_single_device", "diff_rel", "nonfinite", "seconds", "reference"]
    assert rows[[*STACK, "exact_rel", "x_exact", *numbers]].notna().all(axis=None)
    assert set(rows["rank"]) == {table.ALL_RANKS}
    assert set(rows) <= set(SCHEMA.names)


def test_a_schedule_that_raises_becomes_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from accuracy.variant import ulysses

    async def broken(*given):  # type: ignore[no-untyped-def]
        raise RuntimeError("a wire was cut")

    monkeypatch.setattr(ulysses.Ulysses, "backward", broken)
    rows = measured("variant=ulysses", "world_size=2")
    assert list(rows["status"]) == [table.FAILED]
    assert "a wire was cut" in rows["reason"].iloc[0]


def test_each_layer_of_a_stack_drops_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the stack, in its reference, on one device and on every rank, and again in the backward."""
    words = ("variant=[ring,llama3]", "world_size=2", "dtype=float64", "problem.dropout=0.3")
    rows = measured(*words)
    assert set(rows["status"]) == {table.OK}
    assert rows["error_rel"].max() < EXACT
    monkeypatch.setattr(Ranks, "at", lambda self, layer: self)  # of all layers alike
    assert measured(*words)["error_rel"].max() > 1e-2
