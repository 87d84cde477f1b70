import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accuracy.cli import check
from accuracy.gate import decision
from accuracy.results import run_table, storage, table
from accuracy.results.cell import measured
from tests.attack.damages import damage
from tests.command_line import Answer
from tests.gate.conftest import Gate
from tests.gate.made_up import MadeUp, write_baseline

SMALL = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2,), seeds=(0, 1))
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("good") / "baseline", SMALL)


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "baseline"))


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
    return lambda content: json.dumps(json.loads(content) | changes).encode()


def without(key: str) -> Change:
    return lambda content: json.dumps({k: v for k, v in json.loads(content).items() if k != key}).encode()


def frame(change: Callable[[pd.DataFrame], pd.DataFrame], version: int = table.SCHEMA_VERSION) -> Change:
    def changed(content: bytes) -> bytes:
        written = pa.Table.from_pandas(change(pd.read_parquet(pa.BufferReader(content))), preserve_index=False)
        sink = pa.BufferOutputStream()
        pq.write_table(written.replace_schema_metadata({"schema_version": str(version)}), sink)
        return sink.getvalue().to_pybytes()

    return changed


def column(**values: Any) -> Change:
    return frame(lambda rows: rows.assign(**values))


RECORDS: dict[str, tuple[Change, str]] = {  # change, what the line says
    "truncated": (lambda content: content[:-20], "cannot be read"),
    "no text": (lambda content: b"\xff\xfe\x00", "cannot be read"),
    "nested lists": (lambda content: b"[" * 100_000, "cannot be read"),
    "a list": (lambda content: b"[]", "holds no object"),
    "of the future": (edited(schema_version=table.SCHEMA_VERSION + 1), "this reads"),
    "of no version": (without("schema_version"), "schema version None"),
    "of true as version": (edited(schema_version=True), "schema version True"),
    "without cases": (without("cases"), "has no cases"),
    "cases that are numbers": (edited(cases=[1, 2]), "cases are no ids"),
    "cases twice": (edited(cases=["a", "a"]), "cases are repeated"),
    "no fingerprint": (edited(fingerprint=3), "has no fingerprint"),
    "an experiment with escapes": (edited(experiment="\x1b[2Jok"), "the experiment has no name"),
}
TABLES: dict[str, tuple[Change, str]] = {
    "truncated": (lambda content: content[: len(content) // 2], "cannot be read"),
    "empty": (lambda content: b"", "cannot be read"),
    "text": (lambda content: b"error_rel,1", "cannot be read"),
    "a pickle": (lambda content: b"\x80\x04cos\nsystem\n(S'false'\ntR.", "cannot be read"),
    "of the future": (frame(lambda rows: rows, 99), "schema version 99, this reads"),
    "a column less": (frame(lambda rows: rows.drop(columns="error_rel")), "column error_rel"),
    "rows twice": (frame(lambda rows: pd.concat([rows, rows])), "rows are repeated"),
    "negative errors": (column(error_rel=-1.0), "error_rel is missing or"),
    "errors that are NaN": (column(error_rel=float("nan")), "error_rel is"),
    "errors that are text": (column(error_rel="x"), "cannot be read"),
    "ranks below all": (column(rank=-2), "rank is missing or below"),
    "no world": (column(world_size=0), "world_size is missing or below 1"),
    "another status": (column(status="fine"), "status is not one of"),
    "another tensor": (column(tensor="x"), "tensor is not one of"),
    "escapes in names": (column(variant="\x1b[31m"), "control characters"),
    "a name without end": (column(variant="x" * 9999), "is too long"),
}


def refused(answer: Answer) -> str:
    """Exit status 2 and one line."""
    assert answer.status == 2, answer
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("accuracy check: ")
    assert "Traceback" not in line
    assert line.isprintable()
    return line


def test_a_hostile_file_whose_sum_fits_is_refused_for_what_it_says(
    gate: Gate, good: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, changes in (("run.json", RECORDS), ("results.parquet", TABLES)):
        for name, (change, text) in changes.items():
            folder = Path(shutil.copytree(good, tmp_path / file / name))
            (folder / file).write_bytes(change((folder / file).read_bytes()))
            storage.write_sums(folder)  # as somebody who means harm would
            assert text in refused(gate(run, against=folder)), name
    monkeypatch.setattr(run_table, "MOST_JSON_BYTES", 100)
    assert "allowed: 100" in refused(gate(run, against=good))  # too large: unread


def test_a_file_less_is_refused_and_positions_are_signed_unless_an_earlier_version_published(
    gate: Gate, copy: Path, run: Path
) -> None:
    for name in ("SHA256SUMS", "run.json", "results.parquet"):
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        assert name in refused(gate(run, against=copy))
        (copy / name).write_bytes(content)
    positions = copy / storage.POSITIONS
    positions.write_bytes(b"drawn")
    assert gate(run, against=copy).status == 0  # an earlier version's: its SHA256SUMS has no line of them
    storage.write_sums(copy)
    assert gate(run, against=copy).status == 0
    positions.write_bytes(b"drawm")
    assert storage.SUMS in refused(gate(run, against=copy))
    positions.unlink()
    assert storage.SUMS in refused(gate(run, against=copy))


def test_two_runs_are_compared_unless_the_earlier_never_ended(gate: Gate, tmp_path: Path) -> None:
    assert "no such folder" in refused(gate(SMALL, against=tmp_path / "nowhere"))
    gate(SMALL, against=None)
    assert gate(SMALL, against=tmp_path / "run").status == 0
    assert check.main([str(tmp_path / "run"), str(tmp_path / "run")]) == 0
    gate(SMALL.but(about={"ended": None}), against=None)
    assert "is not finished; repeat its command first" in refused(gate(tmp_path / "run", against=tmp_path / "run"))


def test_damage_that_somebody_signed_is_refused_or_hits_nothing_that_is_compared(
    gate: Gate, good: Path, run: Path, tmp_path: Path, stress: bool
) -> None:
    """No traceback, and a pass only on the numbers that were there; unsigned, SHA256SUMS tells."""
    draw, statuses, numbers = random.Random(4711), [], values(good)
    for number in range(1000 if stress else 60):
        folder = Path(shutil.copytree(good, tmp_path / str(number)))
        how = damage(folder / ("run.json", "results.parquet")[number % 2], draw)
        unsigned = gate(run, against=folder)
        assert unsigned.status == 0 if not_changed(folder, good) else storage.SUMS in refused(unsigned), how
        storage.write_sums(folder)
        answer = gate(run, against=folder)
        statuses.append(answer.status)
        if answer.status == 2:
            refused(answer)
        elif answer.status == 0 and "not comparable" not in answer.out:
            assert values(folder) == numbers, how
    assert statuses.count(2) > len(statuses) / 2


def not_changed(folder: Path, good: Path) -> bool:
    return all((folder / name).read_bytes() == (good / name).read_bytes() for name in storage.SIGNED)


def values(folder: Path) -> list[float]:
    return sorted(y for cell in measured(run_table.read_baseline(folder)).values() for y in cell.y.values())
