import base64
import gzip
import json
from pathlib import Path

import pandas as pd

from accuracy.report.block import encode_rows
from accuracy.report.folder import read_folder
from accuracy.report.series import with_labels
from tests.report.synthetic import Shape, write_large_run

BUDGET = 200_000


def large(folder: Path) -> pd.DataFrame:
    write_large_run(folder, Shape(), 8_000)
    return with_labels(read_folder(folder).results)


def decoded(encoded: str) -> dict[str, list[object]]:
    """Column name -> values."""
    columns = json.loads(gzip.decompress(base64.b64decode(encoded)))["columns"]
    return {
        column["name"]: column["numbers"]
        if "numbers" in column
        else [None if code < 0 else column["texts"][code] for code in column["codes"]]
        for column in columns
    }


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    rows = large(tmp_path)
    block = encode_rows(rows, BUDGET)
    assert len(block.encoded) <= BUDGET
    assert block.rows < len(rows)
    assert f"{len(rows) - block.rows:,} were left out" in block.note


def test_rows_over_all_ranks_stay_and_early_seeds_go_before_late_ones(tmp_path: Path) -> None:
    rows = large(tmp_path)
    kept = decoded(encode_rows(rows, BUDGET).encoded)
    assert kept["rank"].count(-1) == (rows["rank"] == -1).sum()
    single = [seed for seed, rank in zip(kept["seed"], kept["rank"], strict=True) if rank != -1]
    assert single.count(0) >= single.count(1) >= single.count(2)


def test_numbers_survive_to_six_digits(tmp_path: Path) -> None:
    rows = large(tmp_path)
    kept = decoded(encode_rows(rows, 10**8).encoded)
    assert kept["case_id"] == rows["case_id"].tolist()
    assert kept["worst_token"] == rows["worst_token"].tolist()
    for given, found in zip(rows["error_rel"], kept["error_rel"], strict=True):
        assert abs(found - given) <= 5.1e-6 * given  # half a unit of the sixth digit


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = large(tmp_path)
    assert encode_rows(rows).encoded == encode_rows(rows.copy()).encoded
