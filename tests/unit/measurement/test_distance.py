import itertools
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from accuracy.core.dtype import FORMATS
from accuracy.measurement import distance as module
from accuracy.measurement import metrics
from accuracy.measurement.distance import Distance, Target, distance

ULP = 2.0**-52
SHAPES = [(1, 1, 1, 1, 1), (3, 1, 8, 2, 4), (2, 2, 5, 3), (4, 3, 6, 2, 5)]
SPACING = {"bfloat16": -7, "float32": -23, "float64": -52}  # next to 1


def pair(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    reference = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    x = reference + 1e-15 * torch.arange(reference.numel()).reshape(shape) * (dtype == torch.float64)
    return x.to(dtype), reference


def by_definition(x: torch.Tensor, reference: torch.Tensor, dtype: str) -> dict[str, Any]:
    """In numpy, from the names: e is the error, r the reference, zero where they are not finite, a and n of heads."""
    with np.errstate(invalid="ignore"):
        error = (x.double() - reference).numpy()
    infinite = np.nan_to_num(error, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    error = np.where(x.double().numpy() == reference.numpy(), 0.0, infinite)
    flat = error.reshape(len(error), -1)
    e, r = (np.where(np.isfinite(each), each, 0.0) for each in (error, reference.numpy()))
    a, n = ((each.sum(-1) if each.ndim > 4 else each).reshape(len(e), -1) for each in (e * r, r * r))
    over, (e, r) = (1, *range(3, error.ndim)), (each.reshape(len(e), -1) for each in (e, r))
    typical = np.sqrt((r**2).mean(1)).reshape(-1, *[1] * (reference.dim() - 1))
    exponents = np.frexp(np.maximum(np.abs(reference.numpy()), typical))[1] - 1
    return {
        "total": np.abs(flat).sum(1), "square": (flat**2).sum(1), "signed": e.sum(1), "signed_square": (e**2).sum(1),
        "outward": (e * np.sign(r)).sum(1), "along": a.sum(1), "along_square": (a**2).sum(1),
        "along_norm": (a * n).sum(1), "norm_quartic": (n**2).sum(1), "largest": np.abs(flat).max(1),
        "worst": np.abs(flat).argmax(1), "norm_square": (r**2).sum(1), "count": np.full(len(e), e.shape[1]),
        "nonfinite": (~x.isfinite()).numpy().reshape(len(e), -1).sum(1),
        "ulp": (np.abs(error) * 2.0 ** -(exponents + SPACING[dtype])).reshape(len(e), -1).max(1),
        "token_square": (error**2).sum(over), "token_largest": np.abs(error).max(over),
    }  # fmt: skip


def assert_same(found: Distance, expected: dict[str, Any]) -> None:
    """Sums in another order: as many roundings as terms, of products of four factors at most, each below 5."""
    bound = np.nan_to_num(625 * ULP * expected["count"].max() * (expected["total"] + expected["norm_square"]).max())
    for name in expected:
        value = getattr(found if hasattr(found, name) else found.sums, name)
        exact = name in ("largest", "worst", "count", "nonfinite", "ulp", "token_largest")
        np.testing.assert_allclose(value, expected[name], rtol=60 * ULP, atol=0 if exact else bound, err_msg=name)


@pytest.mark.parametrize("dtype", list(SPACING))
def test_it_is_what_the_definitions_say(dtype: str) -> None:
    for shape in SHAPES:
        x, reference = pair(shape, getattr(torch, dtype))
        found = distance(x, Target(reference), ulp_dtype=dtype)
        assert_same(found, by_definition(x, reference, dtype))
        plain = distance(x, Target(reference), signed=False).sums
        for name in ("total", "square", "largest", "norm_square", "nonfinite", "count"):
            np.testing.assert_array_equal(getattr(plain, name), getattr(found.sums, name), name)


def test_what_is_not_finite_is_counted_as_the_definitions_say() -> None:
    bad = (1.0, math.nan, math.inf, -math.inf)
    for of_x, of_reference in itertools.product(bad, bad):
        x, reference = pair((2, 1, 4, 2, 3), torch.float32)
        x[1, 0, 2, 1, 0], reference[1, 0, 2, 1, 0] = of_x, of_reference
        expected = by_definition(x, reference, "float32")
        if of_reference != 1.0:
            del expected["ulp"]  # a spacing next to infinity is that of the largest number
        with np.errstate(invalid="ignore", over="ignore"):
            assert_same(distance(x, Target(reference), ulp_dtype="float32"), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_bits_are_those_of_all_elements_wherever_they_are(dtype: str) -> None:
    kind, most = getattr(torch, dtype), FORMATS[dtype].precision
    x = torch.ones(3, 1, 2 * metrics.SAMPLE, 1, 1, dtype=kind)
    full = 2.0 - 2.0 ** (1 - most)
    x[0, 0, -1], x[1, 0, 0] = full, full
    assert metrics.significand_bits(x, dtype).tolist() == [most, most, 1]
    assert metrics.significand_bits(x.double(), dtype).tolist() == [most, most, 1]  # as comparisons hold it
    if dtype == "float64":  # zeros have no bits, and what is not finite counts as zero
        odd = torch.tensor([[0.0, 0.0], [-0.0, math.nan], [math.inf, 0.75], [2.0**-1074, 0.0]], dtype=torch.float64)
        assert metrics.significand_bits(odd, dtype).tolist() == [0, 0, 2, 1]


def test_what_was_computed_in_the_same_memory_before_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed tensor too, as lse comes: its sums go through memory in another order."""
    for shape in SHAPES:
        x, reference = pair(shape, torch.float32)
        for mine, theirs in ((x, reference), (x.transpose(-1, -2), reference.transpose(-1, -2))):
            found = []
            for before in (0.0, math.nan, math.inf, 7.0):
                reused = {use: torch.full((1000,), before, dtype=torch.float64) for use in ("error", "scratch")}
                monkeypatch.setattr(module, "_REUSED", reused)
                found.append(distance(mine, Target(theirs), ulp_dtype="float32"))
            for other in found[1:]:
                for each in fields(metrics.Sums):
                    np.testing.assert_array_equal(getattr(other.sums, each.name), getattr(found[0].sums, each.name))
                np.testing.assert_array_equal(other.token_square, found[0].token_square)
