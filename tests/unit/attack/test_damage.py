"""A damaged file is told in one line, or is measured again, or changes no number: never a traceback, never another
number with exit status 0."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.cli import accept, check, report
from accuracy.results import storage
from tests.measuring import numbers
from tests.sampling import seeds
from tests.unit.gate import made_up
from tests.unit.gate.made_up import MadeUp
from tests.unit.report.page_check import embedded

pytestmark = pytest.mark.xdist_group("damage")  # the files and what commands make of them are made once
SMALL = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2,), seeds=(0, 1))
RUN, BASELINE = Path("run"), Path("reports/made_up/some-gpu")


SHAPES: list[Any] = [
    None, [], {}, [[]], "", "x", True, 0, -1, 2.5, 10**400, float("nan"), "\x1b[31m\n\x00", ["a", 1, None],
    {"a": {"b": [1]}}, "x" * 5000, "../..", [[[[]]]] * 3, "\ud800",
]  # fmt: skip
OTHERS = [b"", b"null", b"[]", b"{}", b"[" * 5000, b"9" * 400, b"NaN", b"\x00" * 64, b'"x"', b"PAR1PAR1", b"\xff\xfe"]


def bits(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _holders(node: Any, depth: int = 0) -> Iterator[tuple[int, Any, Any]]:
    """Of every value of a document: its depth, what holds it, and its key there."""
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield depth, node, key
        yield from _holders(node[key], depth + 1)


def shape(content: bytes, draw: random.Random) -> bytes:
    """One value of a JSON document, or of its last line, becomes something else, or its key goes."""
    begins = 0 if content.startswith(b"{\n") else content.rstrip(b"\n").rfind(b"\n") + 1
    node = json.loads(content[begins:])
    found = list(_holders(node))
    depth = draw.choice(sorted({each[0] for each in found}))
    _, parent, key = draw.choice([each for each in found if each[0] == depth])
    if draw.random() < 0.2:
        del parent[key]
    else:
        parent[key] = draw.choice(SHAPES)
    return content[:begins] + json.dumps(node).encode() + b"\n"


WAYS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "bits": bits,
    "other": lambda content, draw: draw.choice([*OTHERS, draw.randbytes(draw.randrange(200))]),
    "shape": shape,
}  # fmt: skip


def damage(path: Path, draw: random.Random) -> str:
    is_json = path.suffix in (".json", ".jsonl")
    way = draw.choice([*WAYS, *["shape"] * 3] if is_json else [name for name in WAYS if name != "shape"])
    path.write_bytes(WAYS[way](path.read_bytes(), draw))
    return way


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, as `accuracy` leaves it, and `reports/made_up/some-gpu`, a baseline with two lines of history."""
    folder = tmp_path_factory.mktemp("whole")
    made_up.write_run(folder / RUN, SMALL)
    for path in (folder / RUN / "results").iterdir():  # with the checksums that a run writes
        rows = pd.read_parquet(path)
        storage.write_case(folder / RUN, path.stem, rows.astype(object).where(rows.notna(), None).to_dict("records"))
    for reason in ("one", "two"):
        assert accepted(folder, reason) == 0
    return folder


def accepted(folder: Path, reason: str = "three") -> Any:
    return check.main(["accept", str(folder / RUN), "--to", str(folder / "reports"), "--reason", reason])


def checked(folder: Path) -> Any:
    words = ["--baseline", str(folder / BASELINE), "--require-baseline", "--out", str(folder / "out")]
    return check.main([str(folder / RUN), *words])


def judged(folder: Path) -> Any:
    items = json.loads((folder / "out" / "check.json").read_text())["items"]
    return [(item["name"], item["state"], item["run"], item["baseline"]) for item in items]


def rows_of(place: str, folder: Path) -> str:
    return str(numbers(folder / place / BASELINE.relative_to("reports")).to_json())


def reported(place: Path, folder: Path) -> int:
    return report.main([str(folder / place)])


def page_of(place: Path, folder: Path) -> dict[str, Any]:
    page = embedded((folder / place / "report.html").read_text())
    return {name: page[name] for name in page if name != "command"}


COMMANDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {  # and what each makes
    "check": (checked, judged),
    "accept": (accepted, partial(rows_of, "reports")),
    "report of the run": (partial(reported, RUN), partial(page_of, RUN)),
    "report of the baseline": (partial(reported, BASELINE), partial(page_of, BASELINE)),
}
OF_A_RUN = ("check", "accept", "report of the run")
OF_A_BASELINE = ("check", "accept", "report of the baseline")
TARGETS = {
    "run/results/*.parquet": OF_A_RUN, "run/run.json": OF_A_RUN,
    **{f"{BASELINE}/{name}": OF_A_BASELINE for name in ("results.parquet", "run.json", storage.SUMS, accept.HISTORY)},
    f"{BASELINE}/log.md": ("accept",),
}  # fmt: skip
PAIRS = [(target, command) for target, commands in TARGETS.items() for command in commands]


@pytest.fixture(scope="module")
def undamaged() -> dict[str, Any]:
    return {}


@pytest.mark.stress(4)
@pytest.mark.parametrize("seed", seeds(80))
@pytest.mark.parametrize("pair", PAIRS, ids=[f"{Path(target).name}-{command}" for target, command in PAIRS])
def test_a_damaged_file_is_told_or_changes_no_number(
    pair: tuple[str, str], seed: int, whole: Path, undamaged: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target, name = pair
    command, look = COMMANDS[name]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if name not in undamaged:
        healthy = Path(shutil.copytree(whole, tmp_path / "healthy"))
        assert command(healthy) == 0
        undamaged[name] = look(healthy)
    damaged = Path(shutil.copytree(whole, tmp_path / "damaged"))
    draw = random.Random(f"{pair} {seed}")
    how = damage(draw.choice(sorted(damaged.glob(target))), draw)
    capsys.readouterr()
    status = int(command(damaged))
    out, err = capsys.readouterr()
    said = (how, status, out[-300:], err)
    assert status in (0, 2, 3, 4), said
    assert "Traceback" not in out + err, said
    assert status != 2 or (err.count("\n") == 1 and err[:-1].isprintable()), said
    if status == 0:
        assert look(damaged) == undamaged[name], said
