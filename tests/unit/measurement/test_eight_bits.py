"""Inputs of 8 bits: what the kernel adds is `error`, what a user loses is `loss`, each against its own reference."""

import ml_dtypes
import numpy as np
import pandas as pd
import torch

from accuracy.inputs import drawing
from accuracy.measurement.observe import reference_of
from accuracy.results.table import LOSSES
from tests.measuring import TINY, case_of, measure, pipeline

WORDS = ("kernel=eager", "seed=0")
BOTH = ("variant=[single_device,ring]", "world_size=[1,2]")
LIBRARY = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}
TENSORS = ("out", "dq", "dk", "dv")


def whole(results: pd.DataFrame, **where: object) -> pd.DataFrame:
    mine = results[(results["rank"] == -1) & results["tensor"].notna()]
    for name, value in where.items():
        mine = mine[mine[name] == value]
    return mine.set_index("tensor")


def test_inputs_are_eight_bits_times_a_power_of_two_in_bfloat16() -> None:
    drawn = {name: torch.randn(2, 8, 2, 4, dtype=torch.float64) * 3000 for name in drawing.NAMES}
    for dtype, kind in LIBRARY.items():
        for x, given in zip(drawing.round_to(drawn, dtype, "cpu").tensors, drawn.values(), strict=True):
            assert x.dtype == torch.bfloat16
            scale = 2.0 ** np.ceil(np.log2(float(given.bfloat16().abs().max()) / float(ml_dtypes.finfo(kind).max)))
            expected = (given.bfloat16().float().numpy() / scale).astype(kind).astype("float64") * scale
            assert np.array_equal(x.double().numpy(), expected)


def test_a_ring_on_quantised_inputs_adds_little_and_their_user_loses_much() -> None:
    """error is of 16-bit results: below 8 u of bfloat16. loss has the rounding of inputs to 4 bits: 2^-4 / 2^-8 = 16
    times as large, and so at least 4 times, of any tensor. Cases of other dtypes beside it have none."""
    results = measure(*WORDS, *BOTH, "dtype=[bfloat16,float8_e4m3]")
    for variant, size in (("single_device", 1), ("ring", 2)):
        low = whole(results, dtype="float8_e4m3", variant=variant, world_size=size)
        for tensor in TENSORS:
            assert low["error_rel"][tensor] < 8 * 2.0**-8
            assert 4 * low["error_rel"][tensor] < low["loss_rel"][tensor] < 4 * 2.0**-4
            assert low["loss_max"][tensor] >= low["loss_rms"][tensor] >= low["loss_mean"][tensor] > 0
    assert results.loc[results["dtype"] == "bfloat16", list(LOSSES)].isna().all().all()


def test_the_loss_is_the_distance_to_what_bfloat16_inputs_give() -> None:
    """||x - exact|| where x = reference of the quantised inputs + error: the difference of the two references, to
    within the error."""
    low = case_of(*TINY, *WORDS, "dtype=float8_e5m2", "variant=single_device", "world_size=1")
    by = pipeline()
    rows, targets = whole(pd.DataFrame(by.measure(low).rows)), by.targets(low)
    inputs = drawing.round_to(drawing.draw(low.inputs, low.problem, low.seed), "bfloat16", "cpu")
    exact = reference_of(low.problem, inputs)
    for tensor in TENSORS:
        apart = float((targets.reference[tensor] - getattr(exact, tensor)).norm() / getattr(exact, tensor).norm())
        assert abs(rows["loss_rel"][tensor] - apart) < 2 * rows["error_rel"][tensor], tensor


def test_the_floor_of_what_a_kernel_stores_in_8_bits_is_that_of_8_bits() -> None:
    """A number spread evenly between two powers of two is off by 2^-3 / sqrt(12) of the lower one, e4m3: 2.4e-2 to
    2.8e-2 of a tensor; bfloat16: 1.7e-3. A ring's out is merged, and stored in 16 bits."""
    results = measure(*BOTH, "kernel=quantised", "kernel.quantised.policy=cudnn_e4m3", "dtype=bfloat16", "seed=0")
    low, merged = whole(results, variant="single_device"), whole(results, variant="ring", world_size=2)
    for tensor in TENSORS:
        assert 2.2e-2 < low["floor_rel"][tensor] < 2.9e-2, tensor
        assert 1 < low["x_floor"][tensor] < 4, tensor
        assert merged["floor_rel"][tensor] < 2.0**-8, tensor
    assert low["floor_rel"]["lse"] < 2.0**-23
