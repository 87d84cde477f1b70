import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accuracy.gate import decision
from accuracy.results import run_table, storage, table
from tests.command_line import assert_one_line
from tests.unit.conftest import Gate
from tests.unit.gate.made_up import MadeUp, write_baseline

SMALL = MadeUp(variants=("single_device", "ring"), sizes=(2,), seeds=(0, 1))
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("good") / "baseline", SMALL)


@pytest.fixture
def run(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run under test, read and judged without a baseline once."""
    gate(SMALL, against=None)
    run = run_table.read_run(tmp_path / "run")
    found = decision.verdicts(run)
    monkeypatch.setattr(run_table, "read_run", lambda folder: run)
    monkeypatch.setattr(decision, "verdicts", lambda run: found)
    return tmp_path / "run"


def edited(**changes: object) -> Change:
    """A key of run.json is another, or gone where it is ..."""
    return lambda content: json.dumps(
        {key: value for key, value in (json.loads(content) | changes).items() if value is not ...}
    ).encode()


def frame(change: Callable[[pd.DataFrame], pd.DataFrame], version: int = table.SCHEMA_VERSION) -> Change:
    def changed(content: bytes) -> bytes:
        written = pa.Table.from_pandas(change(pd.read_parquet(pa.BufferReader(content))), preserve_index=False)
        sink = pa.BufferOutputStream()
        pq.write_table(written.replace_schema_metadata({"schema_version": str(version)}), sink)
        return sink.getvalue().to_pybytes()

    return changed


RECORDS: tuple[tuple[Change, str], ...] = (  # change, what the line says
    (lambda content: content[:-20], "cannot be read"),
    (lambda content: b"\xff\xfe\x00", "cannot be read"),
    (lambda content: b"[" * 100_000, "cannot be read"),
    (lambda content: b"[]", "holds no object"),
    (edited(schema_version=table.SCHEMA_VERSION + 1), "this reads"),
    (edited(schema_version=...), "schema version None"),
    (edited(schema_version=True), "schema version True"),
    (edited(cases=...), "has no cases"),
    (edited(cases=[1, 2]), "cases are no ids"),
    (edited(fingerprint=3), "has no fingerprint"),
    (edited(experiment="\x1b[2Jok"), "the experiment has no name"),
)
TABLES: tuple[tuple[Change, str], ...] = (
    (lambda content: content[: len(content) // 2], "cannot be read"),
    (frame(lambda rows: rows, 99), "schema version 99, this reads"),
    (frame(lambda rows: rows.drop(columns="error_rel")), "column error_rel"),
    (frame(lambda rows: rows.assign(error_rel="x")), "cannot be read"),
    (frame(lambda rows: rows.assign(rank=None)), "cannot be read"),
    (frame(lambda rows: rows.assign(error_rel=float("nan"))), "numbers are missing"),
)


refused = partial(assert_one_line, name="accuracy check")


def test_a_damaged_file_is_refused_by_its_sum_and_one_that_nobody_can_read_for_what_it_is(
    gate: Gate, good: Path, run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "baseline"))
    for name, changes in (("run.json", RECORDS), ("results.parquet", TABLES)):
        content = (folder / name).read_bytes()
        for change, text in changes:
            (folder / name).write_bytes(change(content))
            refused(gate(run, against=folder), storage.SUMS)
            storage.write_sums(folder)
            refused(gate(run, against=folder), text)
        (folder / name).write_bytes(content)


def test_a_file_less_is_refused_and_positions_are_signed(gate: Gate, good: Path, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(good, tmp_path / "baseline"))
    for name in ("SHA256SUMS", "run.json", "results.parquet"):
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        refused(gate(run, against=copy), name)
        (copy / name).write_bytes(content)
    positions = copy / storage.POSITIONS
    positions.write_bytes(b"drawn")
    refused(gate(run, against=copy), storage.SUMS)  # its SHA256SUMS has no line of them
    storage.write_sums(copy)
    assert gate(run, against=copy).status == 0
    for change in (lambda: positions.write_bytes(b"drawm"), positions.unlink):
        change()
        refused(gate(run, against=copy), storage.SUMS)


def test_two_runs_are_compared_unless_the_earlier_never_ended(gate: Gate, tmp_path: Path) -> None:
    refused(gate(SMALL, against=tmp_path / "nowhere"), "no such folder")
    assert gate(tmp_path / "run", against=tmp_path / "run").status == 0
    assert gate(tmp_path / "run", str(tmp_path / "run"), against=None).status == 0  # the other spelling
    gate(SMALL.but(about={"ended": None}), against=None)
    refused(gate(tmp_path / "run", against=tmp_path / "run"), "is not finished; repeat its command first")
