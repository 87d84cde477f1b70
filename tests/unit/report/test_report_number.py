import math

import pytest

from accuracy.core import number
from accuracy.verdict.growth import Growth, fit_growth

ODD = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7e308, -1e-3, "no number", 1, 1e5, 99999.9]
WRITERS = [number.scientific, number.plain, number.ratio, number.signed]


def test_every_value_has_a_text_and_ratios_have_three_digits_and_the_geometric_mean_is_total() -> None:
    for text in (write(value) for write in WRITERS for value in ODD):
        assert text
        assert "nan" not in text
        assert "inf" not in text
    for value, text in {1.2345: "1.23", 12.345: "12.3", 0.0312: "0.031", 123456: "1.23e5", 0.9996: "1.00"}.items():
        assert number.plain(value) == text
    for values, mean in (([1.0, 4.0, None, math.nan], 2.0), ([1.0, math.inf], math.inf), ([1.0, 0.0], 0.0)):
        assert number.geometric_mean(values) == pytest.approx(mean)
    assert math.isnan(number.geometric_mean([]))


def fitted(*points: tuple[int, float]) -> Growth:
    growth = fit_growth(points)
    assert isinstance(growth, Growth)
    return growth


def test_growth_is_the_exponent_with_the_textbook_interval() -> None:
    growth = fitted(*((size, 3e-3 * size**-0.3) for size in (2, 4, 8, 16, 32)))
    assert growth.exponent == pytest.approx(-0.3, abs=1e-12)
    assert growth.high - growth.low < 1e-6
    # x = log2 W = 1, 2, 3, 4 and y = 0, 1, 1, 2: slope 0.6, residual sum 0.2, sum of squares of x 5,
    # standard error sqrt(0.2 / 2 / 5) = 0.1414, t(2) = 4.3027. Logarithms of both axes cancel in the slope.
    growth = fitted((2, 1.0), (4, 2.0), (8, 2.0), (16, 4.0))
    assert growth.exponent == pytest.approx(0.6)
    assert growth.high - growth.exponent == pytest.approx(4.30265 * math.sqrt(0.02), rel=1e-5)


def test_world_size_one_and_useless_errors_do_not_count_and_two_world_sizes_are_too_few() -> None:
    growth = fitted((1, 5.0), (2, math.inf), (4, 0.0), (8, math.nan), (2, 1.0), (4, 2.0), (8, 4.0))
    assert (growth.exponent, growth.points) == (pytest.approx(1.0), 3)
    assert "2 world sizes" in str(fit_growth([(1, 1.0), (2, 1.0), (4, 2.0), (4, 2.1)]))


def test_an_interval_has_one_word() -> None:
    words = {(0.01, 0.05): "flat", (0.2, 0.3): "slow growth", (0.45, 0.55): "random walk", (0.9, 1.1): "bias",
             (-0.5, -0.2): "falling", (-0.4, 0.9): "unclear"}  # fmt: skip
    for (low, high), word in words.items():
        assert Growth((low + high) / 2, low, high, 9).word == word
