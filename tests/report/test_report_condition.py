from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.build import write_report
from accuracy.report.folder import read_folder
from accuracy.report.further import condition_panels
from accuracy.report.series import with_labels
from accuracy.results import table
from tests.report import page_check
from tests.report.synthetic import Shape, write_run

SHAPE = Shape(("single_device", "ring"), ("bfloat16",), (1, 4), (0, 1), tensors=("out", "lse", "dq"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Two inputs: Gaussian as made up, and others ten times as hard, and ten times as far off."""
    run = read_folder(write_run(tmp_path_factory.mktemp("run"), SHAPE))
    easy = run.measured.assign(condition_softmax=3.0, condition_sum=40.0, condition_rounding=1.4)
    hard = easy.assign(
        inputs="tied", case_id=easy["case_id"] + "t", error_rel=10 * easy["error_rel"],
        condition_softmax=20.0, condition_sum=50.0, condition_rounding=14.0,
    )  # fmt: skip
    return with_labels(pd.concat([easy, hard], ignore_index=True))


def test_one_panel_a_dtype(measured: pd.DataFrame) -> None:
    (panel,) = condition_panels(measured)
    assert panel.label == "bfloat16, 1024 tokens, 4/2 heads of 64"


def test_the_table_without_charts_has_error_over_condition_and_roundoff(measured: pd.DataFrame) -> None:
    """By hand: of single device's out the error is u / 2, of lse 0.7 of float32's u; geometric mean of seeds 0.99 and
    1."""
    (panel,) = condition_panels(measured)
    by_sum, by_rounding = ([[cell.text for cell in row] for row in found.rows] for found in panel.data)
    seeds = (0.99 * 1.0) ** 0.5
    expected = [0.5 * seeds / 1.4, 0.7 * seeds / 1.4, 0.9 * seeds / 1.4]
    assert by_rounding[0][:2] == ["gaussian", "single_device"]
    assert [float(cell.split()[0]) for cell in by_rounding[0][2:]] == pytest.approx(expected, rel=2e-3)
    tied = next(row for row in by_rounding if row[:2] == ["tied", "single_device"])
    assert tied[2].split()[0] == by_rounding[0][2].split()[0]
    assert float(by_sum[0][2].split()[0]) == pytest.approx(0.5 * seeds / 40, abs=5e-4)  # three decimals


def test_the_conditions_themselves_are_in_the_open(measured: pd.DataFrame) -> None:
    (panel,) = condition_panels(measured)
    assert [[cell.text for cell in row] for row in panel.tables[0].rows] == [
        ["gaussian", "3.00", *["40.0 / 1.40"] * 3],
        ["tied", "20.0", *["50.0 / 14.0"] * 3],
    ]


def test_a_ring_counts_at_its_largest_world_size_only(measured: pd.DataFrame) -> None:
    changed = measured.assign(error_rel=measured["error_rel"].where(measured["world_size"] == 4, 1e9))
    ring = [row for row in condition_panels(changed)[0].data[1].rows if row[1].text == "ring"]
    assert all(float(cell.text.split()[0]) < 10 for row in ring for cell in row[2:])


def test_options_and_masks_tell_inputs_apart_where_they_differ(measured: pd.DataFrame) -> None:
    tied = measured["inputs"] == "tied"
    by_mask = measured.assign(inputs="gaussian", mask=tied.map({True: "causal,documents=24+1000", False: "causal"}))
    (panel,) = condition_panels(by_mask)
    names = [row[0].text for row in panel.tables[0].rows]
    assert names == ["gaussian causal", "gaussian causal,packed documents"]
    by_layer = measured.assign(inputs="captured", inputs_options=tied.map({True: "layer=2", False: "layer=0"}))
    (panel,) = condition_panels(by_layer)
    assert [row[0].text for row in panel.tables[0].rows] == ["captured layer=0", "captured layer=2"]


@pytest.mark.parametrize("lack", ["columns", "inputs"])
def test_nothing_is_shown_of_one_inputs_or_of_an_older_table(measured: pd.DataFrame, lack: str) -> None:
    rows = measured[measured["inputs"] == "gaussian"]
    if lack == "columns":
        rows = measured.assign(condition_softmax=None, condition_sum=None, condition_rounding=None)
    assert condition_panels(rows) == []


def test_the_page_has_the_section_where_there_is_something_to_show(tmp_path: Path, measured: pd.DataFrame) -> None:
    for name, rows in (("with", measured), ("without", measured[measured["inputs"] == "gaussian"])):
        folder = tmp_path / name
        folder.mkdir()
        rows.reindex(columns=table.RESULTS_SCHEMA.names).to_parquet(
            folder / "results.parquet", schema=table.RESULTS_SCHEMA
        )
        page = write_report(folder).path.read_text()
        assert ('<section id="conditions"' in page) == (name == "with")
        assert page_check.charts_without_text(page) == []
        assert page_check.repeated_identifiers(page) == set()
