"""Every colour of a series stands out from its ground, by 3:1: WCAG 2's least for graphics."""

import re
from pathlib import Path

from accuracy.chart import view

PAGE = (Path(view.__file__).parent / "page" / "report.css").read_text()


def contrast(*colours: str) -> float:
    """WCAG 2's, of two colours as #rrggbb."""
    light = []
    for colour in colours:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(light) / min(light)


def test_every_series_stands_out_on_a_light_and_on_a_dark_ground() -> None:
    assert contrast("#000000", "#ffffff") == 21
    assert contrast("#ffffff", "#959595") < 3 < contrast("#ffffff", "#949494")
    papers = re.findall(r"--paper: (#\w{6})", PAGE)[:2]
    assert [contrast(paper, "#000000") > 10 for paper in papers] == [True, False]
    for pair in view.PALETTE:
        assert min(map(contrast, pair, papers)) >= 3, pair
