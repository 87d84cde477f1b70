import math

import pytest

from accuracy.core import number

ODD = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7e308, -1e-3, "no number", 1, 1e5, 99999.9]
WRITERS = [number.scientific, number.plain, number.ratio, number.signed, number.seconds, number.size_in_bytes]


def test_every_value_has_a_text_and_ratios_have_three_digits() -> None:
    for text in (write(value) for write in WRITERS for value in ODD):
        assert text
        assert "nan" not in text
        assert "inf" not in text
    for value, text in {1.2345: "1.23", 12.345: "12.3", 0.0312: "0.031", 123456: "1.23e5", 0.9996: "1.00"}.items():
        assert number.plain(value) == text


def test_the_geometric_mean_is_total() -> None:
    assert number.geometric_mean([1.0, 4.0, None, math.nan]) == pytest.approx(2.0)
    assert number.geometric_mean([1.0, math.inf]) == math.inf
    assert number.geometric_mean([1.0, 0.0]) == 0.0
    assert math.isnan(number.geometric_mean([]))
