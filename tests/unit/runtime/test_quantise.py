"""Every format has the values of an independent table (ml_dtypes), and rounds and scales as its standard says."""

import ml_dtypes
import numpy as np
import pytest
import torch

from accuracy.core.quantisation import FORMATS, LowFormat, Policy
from accuracy.kernel.lowp.tensor_core import factor_of_weights
from accuracy.runtime.rounding import power_of_two_scaled, quantise, rotation, round_to_format

TABLES = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn, "int4": ml_dtypes.int4, "int8": np.int8, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip


def values(name: str) -> np.ndarray:
    """All finite values of a format, float64, ascending, each once; of symmetric integers without the lowest."""
    form = FORMATS[name]
    if name.startswith("int"):
        return np.arange(-form.largest, form.largest + 1)
    bits = np.arange(2**form.bits, dtype=np.uint16 if form.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # NaN among them
        found = bits.view(TABLES[name]).astype("float64")
    return np.unique(found[np.isfinite(found)])


def rounded(x: np.ndarray, form: LowFormat, dtype: torch.dtype = torch.float64) -> np.ndarray:
    return round_to_format(torch.from_numpy(x).to(dtype), form).double().numpy()


def of_library(x: np.ndarray, name: str) -> np.ndarray:
    """Rounded by ml_dtypes: float32 to nearest even."""
    return x.astype("float32").astype(TABLES[name]).astype("float64")


def test_unit_roundoff_is_the_largest_relative_error_of_the_table_s_values() -> None:
    """Half of the distance to the next value over a normal value; of integers beside the largest one, 2^(n-1)."""
    assert set(TABLES) == set(FORMATS)
    for form in FORMATS.values():
        table = values(form.name)
        if form.name.startswith("int"):
            assert form.unit_roundoff == 0.5 / (table[-1] + 1)
        else:
            table = table[table >= 2.0**form.min_exponent]
            assert form.unit_roundoff == np.max(np.diff(table) / 2 / table[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_values_of_the_table_stay_and_all_between_go_to_the_nearest_ties_to_even(form: LowFormat, dtype) -> None:
    """Neighbours' midpoints are exact in float32, and so are points a little beside them."""
    table = values(form.name)
    assert table[-1] == form.largest
    assert np.array_equal(rounded(table, form, dtype), table)
    middle = (table[1:] + table[:-1]) / 2
    step = np.diff(table) / 64
    assert np.array_equal(rounded(middle - step, form, dtype), table[:-1])
    assert np.array_equal(rounded(middle + step, form, dtype), table[1:])
    even = np.rint(middle) if form.name.startswith("int") else of_library(middle, form.name)
    assert np.array_equal(rounded(middle, form, dtype), even)


def test_what_is_beyond_saturates_nan_stays_and_half_of_the_smallest_subnormal_goes_to_zero() -> None:
    for form in FORMATS.values():
        most, least = form.largest, values(form.name)[values(form.name) > 0][0]
        beyond = np.array([1.01 * most, 1e300, np.inf, -np.inf, np.nan])
        assert np.array_equal(rounded(beyond, form), [most, most, most, -most, np.nan], equal_nan=True)
        assert form.smallest == least
        below = np.array([0.5, 0.51, 1.5, 0.0, -0.5]) * least
        assert np.array_equal(rounded(below, form), np.array([0, 1, 2, 0, 0]) * least)


def drawn() -> torch.Tensor:
    """(2, 3, 1, 70, 40), of tokens whose sizes differ."""
    x = torch.randn(2, 3, 1, 70, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x * torch.linspace(0.1, 5, 70, dtype=torch.float64)[:, None]


SHARED = {  # granularity: the tokens and dimensions that share the scale of batch 1, head 2, token 66, dimension 35
    "tensor": ...,
    "head": (1, 2, 0),
    "block": (1, 2, 0, slice(64, 70)),
    "token": (1, 2, 0, 66),
    "elements_32": (1, 2, 0, 66, slice(32, 40)),
}


@pytest.mark.parametrize("granularity", SHARED)
def test_a_scale_is_of_the_largest_of_those_that_share_it_and_of_no_others(granularity: str) -> None:
    """A changed element far below the largest changes nothing else, one far above changes what shares its scale."""
    scale = {"scale_format": "e8m0"} if granularity == "elements_32" else {}
    policy, x, sharing = Policy(granularity=granularity, **scale), drawn(), SHARED[granularity]
    before = quantise(x, "int8", policy)
    moved = x.clone()
    moved[1, 2, 0, 66, 35] = 1e4
    changed = quantise(moved, "int8", policy) != before
    shares = torch.zeros_like(changed)
    shares[sharing] = True
    assert not changed[~shares].any()
    assert changed[shares].float().mean() > 0.5
    most = x[sharing].abs().max() / 127
    error = (before[sharing] - x[sharing]).abs().max()
    assert error <= most * (2 if scale else 1) / 2 * (1 + 1e-12)  # half a spacing; a power of two above is up to twice


def test_blocks_of_elements_lie_along_the_axis_that_a_product_sums_over() -> None:
    policy, x = Policy(granularity="elements_32", scale_format="e8m0"), drawn()
    along_tokens = quantise(x.mT.contiguous(), "e4m3", policy).mT
    assert torch.equal(quantise(x, "e4m3", policy, -2), along_tokens)
    assert not torch.equal(quantise(x, "e4m3", policy, -1), along_tokens)


def test_scales_of_e8m0_are_powers_of_two_that_reach_the_largest_value() -> None:
    """Rounded up: nothing saturates, and half the scale would."""
    for size in (1.0, 447.9, 448.0, 448.1, 1e-30, 3e30):
        x = torch.tensor([[size, size / 3]], dtype=torch.float64)
        found = power_of_two_scaled(x, FORMATS["e4m3"])
        scale = 2.0 ** np.ceil(np.log2(size / 448))
        assert np.array_equal(found.numpy(), of_library(x.numpy() / scale, "e4m3") * scale)
        assert (found / scale).abs().max() > 200


def test_nvfp4_has_scales_of_e4m3_below_one_of_the_tensor() -> None:
    x = drawn()[..., :32]
    blocks = x.numpy().reshape(-1, 16)
    whole = np.abs(blocks).max() / (448 * 6)
    scales = of_library(np.abs(blocks).max(1) / 6 / whole, "e4m3")[:, None] * whole
    expected = of_library(np.clip(blocks / scales, -6, 6), "e2m1") * scales
    found = quantise(x, "e2m1", Policy(granularity="elements_16", scale_format="e4m3"))
    assert np.array_equal(found.numpy().reshape(-1, 16), expected)


def test_zeros_stay_and_a_prescale_keeps_small_weights_that_a_cast_without_it_loses() -> None:
    for policy in (Policy(), Policy(granularity="elements_16", scale_format="e4m3")):
        assert not quantise(torch.zeros(1, 1, 2, 16), "e2m1", policy).any()
    weights = torch.full((1, 1, 1, 1, 4), 2.0**-11, dtype=torch.float64)  # half of e4m3's smallest: 2^-10
    assert torch.equal(factor_of_weights(weights, Policy(p="e4m3", p_prescale=256.0)).values, weights)
    assert not factor_of_weights(weights, Policy(p="e4m3")).values.any()


@pytest.mark.parametrize("width", [1, 40, 64])
def test_a_rotation_is_orthogonal_and_spreads_one_element(width: int) -> None:
    turn = rotation(width, torch.float64, torch.device("cpu"))
    assert torch.allclose(turn @ turn.mT, torch.eye(width, dtype=torch.float64), atol=1e-15)
    assert (turn != 0).sum(1).eq(width & -width).all()
