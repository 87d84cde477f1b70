"""A report of 50,000 rows in a real headless Chromium: every row is there, sorted and filtered as the table says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.report.build import write_report
from tests.report.synthetic import write_large_run

pytestmark = pytest.mark.browser
ROWS = "#row-explorer tbody tr"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_large_run(tmp_path_factory.mktemp("large"))
    write_report(made)
    return made


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    opened = browser.new_page()
    opened.goto((folder / "report.html").as_uri())
    opened.wait_for_selector(ROWS)
    opened.get_by_role("combobox", name="Rank", exact=True).select_option("")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def results(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "results.parquet")


def status(page: Any) -> str:
    return str(page.locator("#row-explorer [role=status]").inner_text())


def column(page: Any, name: str) -> list[str]:
    heads = page.locator("#row-explorer thead th").all_inner_texts()
    place = next(place for place, text in enumerate(heads) if text.split(" ")[0] == name)
    return list(page.locator(ROWS).evaluate_all(f"rows => rows.map(row => row.children[{place}].innerText)"))


def test_every_row_is_there(page: Any) -> None:
    assert status(page) == "50,000 of 50,000 rows, page 1 of 1000"


@pytest.mark.parametrize("name", ["error_max", "worst_token"])
def test_sorting_brings_up_the_extremes_of_the_whole_table(page: Any, results: pd.DataFrame, name: str) -> None:
    header = page.locator("#row-explorer th button", has_text=name)
    for ascending in (False, True):
        header.click()
        expected = results[name].sort_values(ascending=ascending).head(50)
        shown = [float(text) for text in column(page, name)]
        assert shown == pytest.approx(expected.tolist(), rel=5.6e-3, abs=0)  # three digits shown of four


def test_filters_and_search_find_what_the_table_holds(page: Any, results: pd.DataFrame) -> None:
    page.get_by_role("combobox", name="Tensor").select_option("dq")
    page.locator("#row-explorer").get_by_label("World size").select_option("64")
    page.locator("#row-explorer").get_by_label("Setting").select_option("float16")
    page.get_by_label("Search").fill("zigzag")
    wanted = results[
        (results["tensor"] == "dq")
        & (results["world_size"] == 64)
        & (results["variant"] == "zigzag")
        & (results["dtype"] == "float16")
    ]
    assert len(wanted) > 50
    assert status(page).startswith(f"{len(wanted):,} of 50,000 rows")
    assert set(column(page, "variant")) == {"zigzag"}


def test_the_profile_by_rank_has_the_numbers_of_the_table(page: Any, results: pd.DataFrame) -> None:
    explorer = page.locator("#rank-explorer")
    explorer.get_by_label("Variant").select_option("striped")
    explorer.get_by_label("World size").select_option("64")
    explorer.get_by_role("combobox", name="Setting").select_option("bfloat16")
    wanted = results[(results["variant"] == "striped") & (results["world_size"] == 64) & (results["rank"] == 63)]
    wanted = wanted[(wanted["dtype"] == "bfloat16") & (wanted["tensor"] == "out")]
    last = explorer.locator("tbody tr").last
    assert last.locator("th").inner_text() == "63"
    assert float(last.locator("td").first.inner_text()) == pytest.approx(wanted["error_max"].max(), rel=5.6e-3)
