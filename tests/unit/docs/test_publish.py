import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accuracy.core.errors import ConfigError
from accuracy.measurement.provenance import code_digest
from accuracy.results import storage, table
from accuracy.results.derived import RATIOS, SUMMARIES
from docs.publish import UNREAD, drawn, lean, publish
from tests.unit.report.synthetic import FEW, Shape, awkward_rows, in_order, write_run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_run(folder, Shape(("ring",), ("bfloat16",), (2,), (0,), tensors=("out",)))
    about = json.loads((folder / "run.json").read_text()) | {
        "argv": ["accuracy", "variant=ring", f"output_dir={folder}"],
        "fingerprint": {"code": code_digest(), "device": "Some GPU (80 GB)"},
    }
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def test_a_finished_run_becomes_one_file_a_table_also_those_that_only_some_runs_have(
    finished: Path, tmp_path: Path
) -> None:
    (case, *_) = table.read_run(finished)["cases"]
    rows = [{"case_id": case, "axis": "order", "first": 0, "last": 8, "runs": 5}]  # with its empty places
    rows += [{**rows[0], "axis": "length", "before": 3, "value": 4, "tensor": "out", "drift_rel": 0.5}]
    storage.write_rows(finished / "boundaries" / f"{case}.parquet", rows, table.BOUNDARIES_SCHEMA)
    target = publish(finished, tmp_path / "reports")
    assert target.name == "some-gpu-80-gb"
    published = pd.read_parquet(target / "results.parquet")
    assert len(published) == len(table.read_results(finished))
    assert (target / "report.html").exists()
    assert str(tmp_path) not in (target / "run.json").read_text() + (target / "report.html").read_text()
    pd.testing.assert_frame_equal(table.read_side(target, "boundaries"), table.read_side(finished, "boundaries"))


REFUSED: tuple[tuple[dict, str], ...] = (
    ({"ended": None}, "is not finished"),
    ({"cases": ["missing"]}, "1 cases are missing"),
    ({"fingerprint": {"code": "other", "device": "x"}}, "was measured by other code (other)"),
)


def test_what_is_no_evidence_is_refused(finished: Path, tmp_path: Path) -> None:
    about = json.loads((finished / "run.json").read_text())
    for change, told in REFUSED:
        (finished / "run.json").write_text(json.dumps(about | change))
        with pytest.raises(ConfigError, match=re.escape(told)):
            publish(finished, tmp_path / "reports")
        assert not (tmp_path / "reports").exists()


def test_rows_of_all_ranks_keep_every_digit_and_others_twelve_bits_whose_ratios_follow(tmp_path: Path) -> None:
    full = awkward_rows(tmp_path / "run")
    storage.write_table(storage.lean_results(full, lean), tmp_path / "results.parquet")
    read, whole = in_order(table.read_results(tmp_path)), in_order(full)
    all_ranks = whole["rank"] == table.ALL_RANKS
    pd.testing.assert_frame_equal(read[all_ranks], whole[all_ranks], check_exact=True)
    rows = (whole["rank"] >= 0) & np.isfinite(whole["error_rel"]) & (whole["floor_rel"] > 0) & (whole["x_floor"] != 0.5)
    for name in set(table.METRICS) - {*RATIOS, *UNREAD}:
        exact, kept = whole.loc[rows, name].dropna().to_numpy(), read.loc[rows, name].dropna().to_numpy()
        assert (np.abs(kept - exact) <= np.abs(exact) * 2.0**-12).all()
        assert name in SUMMARIES or (np.frexp(kept)[0] * 2**13 % 1 == 0).all()
    assert (read.loc[rows, "x_floor"] == read.loc[rows, "error_rel"] / read.loc[rows, "floor_rel"]).all()


def test_a_page_draws_the_same_places_from_a_published_table(tmp_path: Path) -> None:
    """A published run keeps the errors along the sequence of its two coarsest dtypes."""
    run = write_run(tmp_path / "run", replace(FEW, dtypes=("float64", "float16", "bfloat16")))
    results, all_positions = table.read_results(run), table.read_side(run, "positions")
    kept = drawn(results, all_positions)
    assert 0 < len(kept) < len(all_positions)
    shown = results[results["case_id"].isin(kept["case_id"])]
    assert {*FEW.variants} == set(shown["variant"])
    assert {"bfloat16", "float16"} == set(shown["dtype"])
