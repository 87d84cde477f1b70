import json
from pathlib import Path

import pandas as pd
import pytest

from accuracy.cli.publish import main, publish
from accuracy.measurement.provenance import code_digest
from accuracy.results import storage, table
from tests.command_line import line_of
from tests.unit.report.synthetic import Shape, write_run


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


def test_what_is_no_evidence_is_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((finished / "run.json").read_text())
    for change, told in REFUSED:
        (finished / "run.json").write_text(json.dumps(about | change))
        assert main([str(finished), "--to", str(tmp_path / "reports")]) == 2
        assert told in line_of(capsys, "accuracy publish")
        assert not (tmp_path / "reports").exists()
