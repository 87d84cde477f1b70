import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accuracy.cli import check
from accuracy.gate import decision
from accuracy.results import run_table, storage, table
from accuracy.results.cell import measured
from tests.command_line import Answer
from tests.gate.conftest import Gate
from tests.gate.made_up import MadeUp, write_baseline

SMALL = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2,), seeds=(0, 1))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("good") / "baseline", SMALL)


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "baseline"))


def damaged(folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """One file changed, with sums made to fit, as somebody who means harm would."""
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    storage.write_sums(folder)
    return folder


def edited(**changes: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | changes).encode()


def without(key: str) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({k: v for k, v in json.loads(content).items() if k != key}).encode()


def frame(change: Callable[[pd.DataFrame], pd.DataFrame], version: str | None = None) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        new = change(pd.read_parquet(pa.BufferReader(content)))
        written = pa.Table.from_pandas(new, preserve_index=False)
        metadata = {"schema_version": version or str(table.SCHEMA_VERSION)}
        sink = pa.BufferOutputStream()
        pq.write_table(written.replace_schema_metadata(metadata), sink)
        return sink.getvalue().to_pybytes()

    return changed


BAD = {  # file, change, what the line says
    "truncated table": ("results.parquet", lambda content: content[: len(content) // 2], "cannot be read"),
    "empty table": ("results.parquet", lambda content: b"", "cannot be read"),
    "a table that is text": ("results.parquet", lambda content: b"error_rel,1", "cannot be read"),
    "a pickle": ("results.parquet", lambda content: b"\x80\x04cos\nsystem\n(S'false'\ntR.", "cannot be read"),
    "truncated record": ("run.json", lambda content: content[:-20], "cannot be read"),
    "a record that is no text": ("run.json", lambda content: b"\xff\xfe\x00", "cannot be read"),
    "a record of nested lists": ("run.json", lambda content: b"[" * 100_000, "cannot be read"),
    "a record that is a list": ("run.json", lambda content: b"[]", "holds no object"),
    "a future record": ("run.json", edited(schema_version=table.SCHEMA_VERSION + 1), "this reads"),
    "a record of no version": ("run.json", without("schema_version"), "schema version None"),
    "a record of true as version": ("run.json", edited(schema_version=True), "schema version True"),
    "no cases": ("run.json", without("cases"), "has no cases"),
    "cases that are numbers": ("run.json", edited(cases=[1, 2]), "cases are no ids"),
    "cases twice": ("run.json", edited(cases=["a", "a"]), "cases are repeated"),
    "no fingerprint": ("run.json", edited(fingerprint=3), "has no fingerprint"),
    "an experiment with escapes": ("run.json", edited(experiment="\x1b[2Jok"), "the experiment has no name"),
    "a future table": ("results.parquet", frame(lambda rows: rows, "99"), "schema version 99, this reads"),
    "a column less": ("results.parquet", frame(lambda rows: rows.drop(columns="error_rel")), "column error_rel"),
    "negative errors": ("results.parquet", frame(lambda rows: rows.assign(error_rel=-1.0)), "error_rel is missing or"),
    "errors that are NaN": ("results.parquet", frame(lambda rows: rows.assign(error_rel=float("nan"))), "error_rel is"),
    "errors that are text": ("results.parquet", frame(lambda rows: rows.assign(error_rel="x")), "cannot be read"),
    "rows twice": ("results.parquet", frame(lambda rows: pd.concat([rows, rows])), "rows are repeated"),
    "ranks below all": ("results.parquet", frame(lambda rows: rows.assign(rank=-2)), "rank is missing or below"),
    "no world": ("results.parquet", frame(lambda rows: rows.assign(world_size=0)), "world_size is missing or below 1"),
    "another status": ("results.parquet", frame(lambda rows: rows.assign(status="fine")), "status is not one of"),
    "another tensor": ("results.parquet", frame(lambda rows: rows.assign(tensor="x")), "tensor is not one of"),
    "escapes in names": ("results.parquet", frame(lambda rows: rows.assign(variant="\x1b[31m")), "control characters"),
    "a name without end": ("results.parquet", frame(lambda rows: rows.assign(variant="x" * 9999)), "is too long"),
}


def refused(answer: Answer) -> str:
    """Exit status 2 and one line."""
    assert answer.status == 2, answer
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("accuracy check: ")
    assert "Traceback" not in lines[0]
    assert lines[0].isprintable()
    return lines[0]


@pytest.mark.parametrize("name", BAD)
def test_a_hostile_file_whose_sum_fits_is_refused_for_what_it_says(gate: Gate, copy: Path, name: str) -> None:
    path, change, told = BAD[name]
    assert told in refused(gate(SMALL, against=damaged(copy, path, change)))


@pytest.mark.parametrize("name", ["SHA256SUMS", "run.json", "results.parquet"])
def test_a_file_less_is_refused(gate: Gate, copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name in refused(gate(SMALL, against=copy))


def test_positions_are_signed_too_unless_an_earlier_version_published(gate: Gate, copy: Path) -> None:
    (copy / storage.POSITIONS).write_bytes(b"drawn")
    assert gate(SMALL, against=copy).status == 0  # an earlier version's: its SHA256SUMS has no line of them
    storage.write_sums(copy)
    assert gate(SMALL, against=copy).status == 0
    (copy / storage.POSITIONS).write_bytes(b"drawm")
    assert storage.SUMS in refused(gate(SMALL, against=copy))
    (copy / storage.POSITIONS).unlink()
    assert storage.SUMS in refused(gate(SMALL, against=copy))


def test_two_runs_are_compared_unless_the_earlier_never_ended(gate: Gate, tmp_path: Path) -> None:
    assert "no such folder" in refused(gate(SMALL, against=tmp_path / "nowhere"))
    gate(SMALL, against=None)
    assert gate(SMALL, against=tmp_path / "run").status == 0
    assert check.main([str(tmp_path / "run"), str(tmp_path / "run")]) == 0
    gate(SMALL.but(about={"ended": None}), against=None)
    assert "is not finished; repeat its command first" in refused(gate(tmp_path / "run", against=tmp_path / "run"))


def test_a_file_too_large_is_refused_unread(gate: Gate, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "MOST_JSON_BYTES", 100)
    assert "allowed: 100" in refused(gate(SMALL, against=copy))


def test_the_good_one_is_not_refused(gate: Gate, copy: Path) -> None:
    assert gate(SMALL, against=copy).status == 0


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, bytes cut out, doubled or overwritten, or the end lost."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place, length = chance.randrange(len(data)), chance.choice((1, 1, 4, 64))
        kind = chance.randrange(5)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length]
        elif kind == 3:
            data[place : place + length] = chance.randbytes(length)
        else:
            del data[place:]
        if not data:
            break
    return bytes(data)


def mutants(good: Path, folder: Path, number: int, names: tuple[str, ...], signed: bool) -> Iterator[None]:
    shutil.copytree(good, folder)
    originals = {name: (good / name).read_bytes() for name in (*storage.SIGNED, storage.SUMS)}
    chance = random.Random(4711)
    made = 0
    while made < number:
        name = names[made % len(names)]
        changed = mutated(originals[name], chance)
        if changed == originals[name]:
            continue
        for each, content in originals.items():
            (folder / each).write_bytes(changed if each == name else content)
        if signed:
            storage.write_sums(folder)
        yield
        made += 1


@pytest.fixture
def run_read_once(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run under test, and what is said of it without a baseline, is the same each time."""
    gate(SMALL, against=None)
    run = run_table.read_run(tmp_path / "run")
    monkeypatch.setattr(run_table, "read_run", lambda folder: run)
    said = decision.verdicts(run)
    monkeypatch.setattr(decision, "verdicts", lambda run: said)


@pytest.mark.usefixtures("run_read_once")
def test_damaged_baselines_are_all_refused(gate: Gate, good: Path, tmp_path: Path, stress: bool) -> None:
    folder = tmp_path / "mutant"
    names = ("run.json", "results.parquet", "SHA256SUMS")
    for _ in mutants(good, folder, 1000 if stress else 60, names, signed=False):
        assert "SHA256SUMS" in refused(gate(tmp_path, against=folder))


@pytest.mark.usefixtures("run_read_once")
def test_damage_that_somebody_signed_is_refused_or_hits_nothing_that_is_compared(
    gate: Gate, good: Path, tmp_path: Path, stress: bool
) -> None:
    """With sums made to fit: no traceback, and a pass only on the numbers that were there."""
    folder = tmp_path / "mutant"
    numbers = values(good)
    statuses = []
    for _ in mutants(good, folder, 1000 if stress else 60, ("run.json", "results.parquet"), signed=True):
        answer = gate(tmp_path, against=folder)
        statuses.append(answer.status)
        if answer.status == 2:
            refused(answer)
        elif answer.status == 0 and "not comparable" not in answer.out:
            assert values(folder) == numbers
    assert statuses.count(2) > len(statuses) / 2


def values(folder: Path) -> list[float]:
    return sorted(y for cell in measured(run_table.read_baseline(folder)).values() for y in cell.y.values())
