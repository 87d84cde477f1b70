import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accuracy.core.dtype import FORMATS
from accuracy.core.sharding import SHARDINGS
from accuracy.measurement import distance as module
from accuracy.measurement import metrics, pipeline
from accuracy.measurement.distance import Distance, Target, distance
from accuracy.measurement.pipeline import worst_places
from accuracy.runtime.rounding import spacing
from accuracy.runtime.sharding import cut, token_map

ULP = 2.0**-52
FORMAT_TYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


def shards(*ranks: list[float]) -> torch.Tensor:
    """(W, B=1, S/W, H=1, D=1) float64."""
    return torch.tensor(ranks, dtype=torch.float64)[:, None, :, None, None]


def sums_of(x: torch.Tensor, reference: torch.Tensor) -> metrics.Sums:
    return distance(x, Target(reference), ulp_dtype="float64").sums


EXPECTED = {  # rank 0, rank 1, all ranks together
    "error_max": (0.5, 1, 1),
    "error_mean": (0.25, 0.5, 0.375),
    "error_rms": (math.sqrt(0.125), math.sqrt(0.5), math.sqrt(1.25 / 4)),
    "error_rel": (math.sqrt(0.25 / 5), math.sqrt(1 / 25), math.sqrt(1.25 / 30)),
    "error_bias": (0.25, -0.5, -0.125),
    "error_bias_t": (math.sqrt(2), -math.sqrt(2), -0.125 / math.sqrt((0.3125 - 0.015625) / 4)),
    "error_outward": (0.25, -0.5, -0.125),
    "error_gain": (0.1, -0.16, -3.5 / 30),
    "error_gain_se": (math.sqrt(0.32) / 5, math.sqrt(2 * 1.44**2) / 25, math.sqrt(5626.5 / 900) / 30),
    "diff_max": (0.25, 0, 0.25),
    "diff_mean": (0.125, 0, 0.0625),
    "diff_rms": (math.sqrt(0.03125), 0, math.sqrt(0.015625)),
    "diff_rel": (math.sqrt(0.0625 / 5.5625), 0, math.sqrt(0.0625 / 23.5625)),
    "single_device_rel": (math.sqrt(1 / 5), math.sqrt(0.25 / 25), math.sqrt(1.25 / 30)),
    "single_device_max": (1, 0.5, 1),
    "single_device_bias": (0.5, -0.25, 0.125),
    "single_device_outward": (0.5, -0.25, 0.125),
    "floor_mean": (0.125, 0.25, 0.1875),
    "floor_rel": (math.sqrt(0.0625 / 5), math.sqrt(0.25 / 25), math.sqrt(0.3125 / 30)),
    "x_floor": (2, 2, 2),
    "x_single_device": (0.5, 2, 1),
    "ulp_max": (0.5 / 2**-23, 1 / 2**-21, 0.5 / 2**-23),  # next to 1, and next to 4
    "reference_rms": (math.sqrt(5 / 2), math.sqrt(25 / 2), math.sqrt(30 / 4)),
    "nonfinite": (0, 0, 0),
    "worst": (0, 1, 1),
}


def test_worked_example() -> None:
    """Two ranks of two elements: errors 1/2, 0 and 0, -1; diffs 1/4, 0, 0, 0; floor errors half of the errors. Sums
    here are exact in binary; divisions and roots round at most four times: 4 ulp."""
    reference, x = shards([1, 2], [3, 4]), shards([1.5, 2], [3, 3])
    columns = metrics.metric_columns(
        error=sums_of(x, reference),
        diff=sums_of(x, shards([1.25, 2], [3, 3])),
        single_device=sums_of(shards([2, 2], [3, 3.5]), reference),
        floor=sums_of(shards([1.25, 2], [3, 3.5]), reference),
        ulp=distance(x, Target(reference), ulp_dtype="float32").ulp,
    )
    assert set(columns) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        np.testing.assert_allclose(columns[name], expected, rtol=4 * ULP, atol=0, err_msg=name)


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e200, 5e-324)


def test_no_value_on_either_side_makes_a_metric_nan() -> None:
    """One bad element, beside a good one on its rank and a good rank."""
    for x, reference in itertools.product(SPECIAL, SPECIAL):
        xs, references = shards([x, 1], [1, 1]), shards([reference, 1], [1, 1])
        for single_device in (xs, references, torch.ones_like(references)):
            columns = metrics.metric_columns(
                error=sums_of(xs, references),
                diff=sums_of(xs, single_device),
                single_device=sums_of(single_device, references),
                floor=metrics.rounding_sums(references),
                ulp=distance(xs, Target(references), ulp_dtype="float64").ulp,
            )
            for name, column in columns.items():
                assert not np.isnan(column).any(), (x, reference, name, column)


def test_ratios_and_significances_of_nothing_are_zero_one_or_infinite() -> None:
    inf, zeros, ones = math.inf, shards([0, 0]), shards([1, 1, 1])
    for x, expected in ((zeros, 0.0), (shards([0, 1e-300]), 0.0), (shards([0, 1]), inf)):  # 1e-600 is 0 in float64
        assert metrics.relative(sums_of(x, zeros)).tolist() == [expected]
    for above, below, expected in ((1, 2, 0.5), (0, 0, 1), (1, 0, inf), (0, 1, 0), (inf, inf, 1), (inf, 1, inf)):
        assert metrics.ratio(np.array([above]), np.array([below]), zero_by_zero=1.0).item() == expected
    for constant, expected in ((0.25, inf), (-0.25, -inf), (0.0, 0.0)):
        assert metrics.significance(sums_of(ones + constant, ones)).item() == expected


def test_spacings_are_numpy_s_and_those_of_the_largest_number_where_nothing_is_finite() -> None:
    """Next to numbers that the format holds exactly: powers of two, subnormals, zero, both signs."""
    drawn = np.random.default_rng(0).standard_normal(64) * 10.0 ** np.arange(-4, 4).repeat(8)
    for dtype, kind in FORMAT_TYPES.items():
        info = np.finfo(kind)
        edges = [0, 1, 2, 0.5, 1 - info.epsneg, 1 + info.eps, info.tiny, info.tiny / 2, info.smallest_subnormal]
        reference = np.array([*drawn, *edges, *(-np.array(edges))], dtype=kind)
        found = spacing(torch.from_numpy(reference.astype(np.float64)), dtype)
        np.testing.assert_array_equal(found.numpy(), np.spacing(np.abs(reference)).astype(np.float64))
    x = torch.tensor([math.nan, math.inf, -math.inf, torch.finfo(torch.float64).max], dtype=torch.float64)
    for dtype, form in FORMATS.items():
        assert set(spacing(x, dtype).tolist()) == {2.0 ** (1024 - form.precision)}


def test_the_floor_of_float64_is_what_rounding_is_expected_to_cost() -> None:
    """The reference is float64 itself: what it lost cannot be computed. Spread evenly over a spacing, its root mean
    square is spacing / sqrt(12); the spacing is 2^-52 next to 1, 2^-51 next to 2 and 3, 2^-1074 next to 0."""
    reference = shards([1, -2], [0, 3])
    floor = metrics.rounding_sums(reference)
    assert floor.largest.tolist() == [2.0**-51 / math.sqrt(12)] * 2
    assert floor.square[0] == pytest.approx((2.0**-104 + 2.0**-102) / 12)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_the_worst_element_keeps_its_global_place(sharding: str) -> None:
    """A tensor without head dim has no worst dim."""
    world_size, tokens = 3, token_map(sharding, 24, 3)
    for token in (0, 1, 11, 23):
        planted = (1, token, 2, 3)
        whole = torch.zeros(2, 24, 4, 5, dtype=torch.float64)
        x = whole.clone()
        x[planted] = -7.0
        against = Target(cut(whole, sharding, world_size))
        reduced = distance(cut(x, sharding, world_size), against, ulp_dtype="float64").sums
        owner = int((tokens == token).any(1).nonzero())
        assert reduced.largest.argmax() == owner
        place = worst_places(reduced.worst, torch.Size((world_size, 2, 24 // world_size, 4, 5)), tokens)
        assert {name: int(values[owner]) for name, values in place.items()} == dict(
            zip(("worst_batch", "worst_token", "worst_head", "worst_dim"), planted, strict=True)
        )
        assert metrics.with_all_ranks(reduced).worst[-1] == reduced.worst[owner]
    place = worst_places(np.array([3 * 4 + 2.0]), torch.Size((1, 1, 6, 4)), torch.arange(6)[None])
    assert place == {"worst_batch": [0], "worst_token": [3], "worst_head": [2], "worst_dim": [-1]}


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_errors_by_position_fall_into_the_bins_of_their_tokens(sharding: str) -> None:
    """300 tokens in 128 bins of two or three: each bin's largest and root mean square by brute force."""
    whole = torch.randn(2, 300, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    borders = pipeline.position_bins(300)
    found = distance(cut(whole, sharding, 2), Target(cut(torch.zeros_like(whole), sharding, 2)), ulp_dtype="float64")
    compared = SimpleNamespace(distance=found, shape=torch.Size((2, 2, 150, 3, 4)))
    bins = pipeline.position_columns(compared, borders, token_map(sharding, 300, 2))
    for index, (begin, end) in enumerate(itertools.pairwise(borders)):
        assert bins["error_max"][index] == whole[:, begin:end].abs().max()
        expected = whole[:, begin:end].square().mean().sqrt()
        of_any_order = 72 * ULP  # 3 x 2 x 12 squares are added
        assert bins["error_rms"][index] == pytest.approx(float(expected), rel=of_any_order)


def test_bins_are_as_wide_as_one_another_and_each_belongs_to_the_rank_that_holds_all_of_it() -> None:
    for seqlen in (1, 7, 128, 129, 1024):
        widths = np.diff(pipeline.position_bins(seqlen))
        assert (widths.sum(), len(widths)) == (seqlen, min(seqlen, 128))
        assert 1 <= widths.min() <= widths.max() <= widths.min() + 1
    for sharding, seqlen, owners in (
        ("contiguous", 8, [0, 0, 0, 0, 1, 1, 1, 1]), ("zigzag", 8, [0, 0, 1, 1, 1, 1, 0, 0]),
        ("striped", 256, [-1] * 128),
    ):  # fmt: skip
        none = np.zeros((2, seqlen // 2))
        errors = SimpleNamespace(token_square=none, token_largest=none)
        compared = SimpleNamespace(distance=errors, shape=torch.Size((2, 1, seqlen // 2, 1)))
        bins = pipeline.position_columns(compared, pipeline.position_bins(seqlen), token_map(sharding, seqlen, 2))
        assert bins["rank"] == owners


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
def test_it_is_what_the_definitions_say_also_of_what_is_not_finite(dtype: str) -> None:
    for shape in SHAPES:
        x, reference = pair(shape, getattr(torch, dtype))
        found = distance(x, Target(reference), ulp_dtype=dtype)
        assert_same(found, by_definition(x, reference, dtype))
        plain = distance(x, Target(reference), signed=False).sums
        for name in ("total", "square", "largest", "norm_square", "nonfinite", "count"):
            np.testing.assert_array_equal(getattr(plain, name), getattr(found.sums, name), name)
    for of_x, of_reference in itertools.product((1.0, math.nan, math.inf, -math.inf), repeat=2):
        x, reference = pair(SHAPES[1], getattr(torch, dtype))
        x[1, 0, 2, 1, 0], reference[1, 0, 2, 1, 0] = of_x, of_reference
        expected = by_definition(x, reference, dtype)
        if of_reference != 1.0:
            del expected["ulp"]  # a spacing next to infinity is that of the largest number
        with np.errstate(invalid="ignore", over="ignore"):
            assert_same(distance(x, Target(reference), ulp_dtype=dtype), expected)


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
                of_all = distance(mine, Target(theirs), ulp_dtype="float32")
                found.append([*vars(of_all.sums).values(), of_all.token_square])
            for other in found[1:]:
                for first, again in zip(found[0], other, strict=True):
                    np.testing.assert_array_equal(again, first)
