"""A report of 50,000 rows in a real headless Chromium: every row is there, sorted and filtered as the table says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.report.build import write_report
from tests.browser.chromium import Visit
from tests.report.synthetic import write_large_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_large_run(tmp_path_factory.mktemp("large"))
    write_report(made)
    return made


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Visit]:
    with Visit(browser, folder / "report.html") as opened:
        opened.page.get_by_role("combobox", name="Rows", exact=True).select_option("all")
        yield opened


@pytest.fixture(scope="module")
def results(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "results.parquet")


def test_every_row_is_there_and_a_header_brings_up_the_extremes_of_all(visit: Visit, results: pd.DataFrame) -> None:
    assert visit.status() == "50,000 of 50,000 rows, page 1 of 1000"
    for name in ("error_max", "worst_token"):
        header = visit.page.locator("#row-explorer th button", has_text=name)
        for order in ("descending", "ascending"):
            header.click()
            assert visit.page.locator("#row-explorer th[aria-sort]").get_attribute("aria-sort") == order
            expected = results[name].sort_values(ascending=order == "ascending").head(50)
            shown = [float(text) for text in visit.column(name)]
            assert shown == pytest.approx(expected.tolist(), rel=5.6e-3, abs=0)  # three digits shown of four


def test_choices_and_search_find_what_the_table_holds(visit: Visit, results: pd.DataFrame) -> None:
    page = visit.page
    for name, value in (("dtype", "float16"), ("tensor", "dq"), ("variant", "zigzag"), ("ranks", "64")):
        visit.choose(name, value)
    page.get_by_role("combobox", name="Rows", exact=True).select_option("case")
    wanted = results.query("tensor == 'dq' and world_size == 64 and variant == 'zigzag' and dtype == 'float16'")
    assert len(wanted) > 50
    assert visit.status().startswith(f"{len(wanted):,} of 50,000 rows")
    assert set(visit.column("variant")) == {"zigzag"}
    page.get_by_role("combobox", name="Rank", exact=True).select_option("each")
    assert visit.status().startswith(f"{(wanted['rank'] >= 0).sum():,} of 50,000 rows")
    page.get_by_label("Search").fill("no such row")
    assert visit.status().startswith("0 of")


def test_the_profile_by_rank_has_the_numbers_of_the_table(visit: Visit, results: pd.DataFrame) -> None:
    for name, value in (("dtype", "bfloat16"), ("tensor", "out"), ("variant", "striped"), ("ranks", "64"),
                        ("measure", "error_max")):  # fmt: skip
        visit.choose(name, value)
    wanted = results.query("variant == 'striped' and world_size == 64 and rank == 63 and dtype == 'bfloat16'")
    row = visit.page.locator("#view-rank tbody tr", has_text="striped").last
    assert row.locator("td").first.inner_text() == "63"
    expected = wanted.loc[wanted["tensor"] == "out", "error_max"].max()
    assert float(row.locator("td").nth(1).inner_text()) == pytest.approx(expected, rel=5.6e-3)
