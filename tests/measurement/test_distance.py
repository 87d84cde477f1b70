import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from accuracy.core.dtype import FORMATS
from accuracy.measurement import distance as module
from accuracy.measurement import metrics, significand
from accuracy.measurement.distance import Distance, Target, distance
from accuracy.runtime.workspace import Workspace

ULP = 2.0**-52
SHAPES = [(1, 1, 1, 1, 1), (3, 1, 8, 2, 4), (2, 2, 5, 3), (4, 3, 6, 2, 5)]
ADDED = ("total", "square", "signed", "signed_square", "outward", "norm_square")  # in another order: as many roundings
# of four factors at most, each below 5: 625 times as much
PRODUCTS = ("along", "along_square", "along_norm", "norm_quartic")


def pair(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    reference = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    return reference.clone().to(dtype), reference


def by_definition(x: torch.Tensor, reference: torch.Tensor, dtype: str) -> Distance:
    error = metrics.error_of(x, reference)
    over = [1, *range(3, error.dim())]
    return Distance(
        metrics.sums(error, x, reference), metrics.ulp_max(error, reference, dtype),
        error.square().sum(over).numpy(), error.abs().amax(over).numpy(),
    )  # fmt: skip


def assert_same(found: Distance, expected: Distance) -> None:
    for each in fields(metrics.Sums):
        a, b = getattr(found.sums, each.name), getattr(expected.sums, each.name)
        bound = expected.sums.count.max() * ULP * (expected.sums.total.max() + b.max())
        bound *= 625 if each.name in PRODUCTS else each.name in ADDED
        if np.isfinite(bound):
            np.testing.assert_allclose(a, b, rtol=0, atol=bound, err_msg=each.name)
    np.testing.assert_array_equal(found.ulp, expected.ulp)
    np.testing.assert_array_equal(found.token_largest, expected.token_largest)
    np.testing.assert_allclose(found.token_square, expected.token_square, rtol=60 * ULP)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_it_is_what_the_definitions_say(shape: tuple[int, ...], dtype: str) -> None:
    x, reference = pair(shape, getattr(torch, dtype))
    if dtype == "float64":
        x = x + 1e-15 * torch.arange(x.numel()).reshape(shape)
    assert_same(distance(x, Target(reference), ulp_dtype=dtype), by_definition(x, reference, dtype))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("of", ["x", "reference", "both"])
def test_what_is_not_finite_is_counted_as_ever(bad: float, of: str) -> None:
    x, reference = pair((2, 1, 4, 2, 3), torch.float32)
    if of != "reference":
        x[1, 0, 2, 1, 0] = bad
    if of != "x":
        reference[1, 0, 2, 1, 0] = bad
    found, expected = distance(x, Target(reference), ulp_dtype="float32"), by_definition(x, reference, "float32")
    for each in fields(metrics.Sums):
        np.testing.assert_array_equal(getattr(found.sums, each.name), getattr(expected.sums, each.name), each.name)
    np.testing.assert_array_equal(found.token_largest, expected.token_largest)


def test_an_overflowing_error_is_not_lost() -> None:
    """Finite values whose distance is not: float64's largest and its opposite."""
    most = torch.finfo(torch.float64).max
    x, reference = (torch.full((1, 1, 2, 1, 1), sign * most, dtype=torch.float64) for sign in (1, -1))
    assert distance(x, Target(reference)).sums.largest.tolist() == [math.inf]


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (1, 3, 1, 2), (1, 0, 2, 4), (0, 4, 0, 1)])
def test_the_worst_element_is_found_by_way_of_its_token(place: tuple[int, ...]) -> None:
    x, reference = pair((2, 2, 5, 3, 5), torch.float64)
    x[(1, *place)] += 9.0
    worst = int(distance(x, Target(reference), ulp_dtype="float64").sums.worst[1])
    assert np.unravel_index(worst, (2, 5, 3, 5)) == place


def test_a_token_mistaken_for_another_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the first token, taken for that of the largest element."""
    original = module._worst
    first = {"worst_token": torch.zeros(1, dtype=torch.float64)}
    monkeypatch.setattr(module, "_worst", lambda size, largest: original(size, largest) | first)
    x, reference = pair((1, 1, 4, 2, 3), torch.float64)
    x[0, 0, 2, 1, 1] += 9.0
    found, expected = distance(x, Target(reference), ulp_dtype="float64"), by_definition(x, reference, "float64")
    assert int(found.sums.worst[0]) != int(expected.sums.worst[0])


def test_without_signs_the_sizes_are_the_same() -> None:
    x, reference = pair((3, 1, 8, 2, 4), torch.float32)
    plain, whole = distance(x, Target(reference), signed=False).sums, distance(x, Target(reference)).sums
    for name in ("total", "square", "largest", "worst", "norm_square", "nonfinite", "count"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(whole, name), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_bits_are_those_of_all_elements_wherever_they_are(dtype: str) -> None:
    kind, most = getattr(torch, dtype), FORMATS[dtype].precision
    x = torch.ones(3, 1, 2 * significand.SAMPLE, 1, 1, dtype=kind)
    full = 2.0 - 2.0 ** (1 - most)
    x[0, 0, -1], x[1, 0, 0] = full, full
    assert significand.significand_bits(x, dtype).tolist() == [most, most, 1]
    assert significand.significand_bits(x.double(), dtype).tolist() == [most, most, 1]  # as comparisons hold it


def test_zeros_have_no_bits_and_what_is_not_finite_counts_as_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [-0.0, math.nan], [math.inf, 0.75], [2.0**-1074, 0.0]], dtype=torch.float64)
    assert significand.significand_bits(x, "float64").tolist() == [0, 0, 2, 1]


@pytest.mark.parametrize("before", [math.nan, math.inf, 7.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_was_computed_in_the_same_memory_before_changes_no_bit(shape: tuple[int, ...], before: float) -> None:
    """A transposed tensor too, as lse comes: its sums go through memory in another order."""
    workspace = Workspace()
    for use in ("error", "scratch"):
        workspace.like(torch.empty(1000), use).fill_(before)
    x, reference = pair(shape, torch.float32)
    for mine, theirs in ((x, reference), (x.transpose(-1, -2), reference.transpose(-1, -2))):
        alone, kept = (
            distance(mine, Target(theirs), ulp_dtype="float32", workspace=each) for each in (None, workspace)
        )
        for each in fields(metrics.Sums):
            np.testing.assert_array_equal(getattr(kept.sums, each.name), getattr(alone.sums, each.name), each.name)
        for name in ("ulp", "token_square", "token_largest"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(alone, name), name)
