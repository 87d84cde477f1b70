"""The first screen says of every kind of table what the table says."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.first_screen import Answer
from accuracy.report.first_screen import answer as answer_of
from accuracy.report.folder import material_of, read_folder
from tests.report import tables
from tests.report.headline_check import contradictions
from tests.report.tables import Change, run_of, shape

REPORTS = Path(__file__).parents[2] / "reports"
LOGIC_DTYPES = ("bfloat16", "float32", "float64")
Cell = tuple[str, str, int, float, int | None] | None
"""Of the worst cell: tensor, dtype, number of ranks, times single device's error or the floor, and the worst rank."""
HEALTHY: Cell = ("dk", "bfloat16", 4, 1.15, None)
EXPECTED: dict[str, tuple[tables.Shape, Change | None, str, Cell]] = {
    "healthy": (tables.FEW, None, "No bug found: up to 4 ranks every variant stays within 1.15 times", HEALTHY),
    "a logic bug": (
        shape(dtypes=LOGIC_DTYPES), tables.logic, "ring: dk is wrong at any", ("dk", "bfloat16", 4, 160, 3)),
    "a logic bug of single device": (
        shape(dtypes=LOGIC_DTYPES), tables.logic_of_single_device, "single_device with kernel torch_flash: out is",
        ("out", "bfloat16", 1, 320, None)),
    "a logic bug in a single dtype": (
        shape(world_sizes=(1, 2)), tables.logic, "ring: dk is wrong in bfloat16, the only",
        ("dk", "bfloat16", 2, 160, None)),
    "not finite": (tables.FEW, tables.not_finite, "zigzag: dv is not finite.", ("dv", "bfloat16", 4, 1.15, None)),
    "more rounding than explained": (
        shape(variants=("single_device", "ring", "llama3")), tables.excess, "llama3: dk and dv round more",
        ("dk", "bfloat16", 4, 3.45, 0)),
    "two policies": (
        shape(variants=("single_device", "ring")), tables.two_policies, "ring (lse=bfloat16): out and lse round more",
        ("out", "bfloat16", 4, 3.45, 0)),
    "lse goes further": (
        shape(dtypes=("bfloat16", "float64")), tables.lse_further,
        "No bug found: up to 4 ranks out, dq, dk and dv of every variant stay within 1.15 times single device's error "
        "(float64 apart). Furthest in bfloat16 is dk of ring, 1.15 times at 4 ranks; lse of zigzag has 1.44 times",
        HEALTHY),
    "nothing is finite": (tables.FEW, tables.no_number, "ring: out and lse are not finite.",
                          ("out", "bfloat16", 4, float("inf"), None)),
    "single device has no error": (
        tables.FEW, tables.endless,
        "No bug found: up to 4 ranks every variant stays within 1.15 times single device's error. Furthest in bfloat16 "
        "is dk of ring, 1.15 times at 4 ranks; single device has no error in lse of ring",
        ("dk", "bfloat16", 4, 1.15, 0)),
    "no growth": (shape(world_sizes=(8,)), None, "No bug found: at 8 ranks", ("dk", "bfloat16", 8, 1.15, None)),
    "one rank": (shape(variants=("single_device", "bpt"), world_sizes=(1,)), None, "No bug found: at 1 rank",
                 ("dk", "bfloat16", 1, 1.15, None)),
    "float64 only": (shape(dtypes=("float64",)), None, "No bug found: up to 4 ranks", ("dk", "float64", 4, 1.15, None)),
    "kernels": (shape(variants=("single_device",)), tables.kernels, "fused: dk rounds more",
                ("dk", "bfloat16", 1, 2.5, None)),
    "many variants": (shape(world_sizes=(2,), seeds=(0,)), tables.many_variants, "No bug found: at 2 ranks",
                      ("dk", "bfloat16", 2, 1.26, None)),
    "failed": (shape(variants=(), reasons=("no float64", "out of memory")), None,
               "Nothing was measured. 1 case failed and 1 case is unsupported: out of memory.", None),
    "unsupported": (shape(variants=(), reasons=("no float64",)), None, "Nothing was measured. 1 case is", None),
    "partial": (shape(record={"planned": 99, "ended": None}), None, "Partial run (21 of 99 cases). No bug", HEALTHY),
}  # fmt: skip


def answer(folder: Path, table: tables.Shape, change: Change | None = None) -> Answer:
    return answer_of(material_of(run_of(folder, table, change)))


@pytest.mark.stress(5)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_headline_is_about_the_worst_of_what_is_wrong(name: str, tmp_path: Path, stress: bool) -> None:
    table, change, first, cell = EXPECTED[name]
    if stress and change is tables.many_variants:
        change = partial(tables.many_variants, copies=500)
    run = run_of(tmp_path, table, change)
    found = answer_of(material_of(run))
    assert found.title.startswith(first)
    assert contradictions(found.title, run.measured) == []
    worst = found.worst and (found.worst.tensor, found.worst.dtype, found.worst.world_size, found.worst.rank)
    assert worst == (cell and (*cell[:3], cell[4]))
    assert not found.worst or not cell or found.worst.times == pytest.approx(cell[3], rel=0.01)


def test_of_verdicts_alike_the_furthest_leads(tmp_path: Path) -> None:
    """ring, before zigzag in the table, is less far off."""

    def both(rows: pd.DataFrame) -> pd.DataFrame:
        sums = (rows["world_size"] > 1) & rows["tensor"].isin(["dk", "dv"])
        ring, zigzag = (sums & (rows["variant"] == name) for name in ("ring", "zigzag"))
        return tables.times(tables.times(rows, ring, 2.5), zigzag, 3.0)

    found = answer(tmp_path, tables.FEW, both)
    assert found.title.startswith("zigzag: dk and dv round more than the schedule explains. dk has 3.45 times")
    assert "Also flagged: ring." in found.advice


WRONG = {
    "lse goes further": (
        "No bug found: up to 4 ranks every variant stays within 1.15 times single device's error.",
        "No bug found: out, dq, dk and dv of every variant stay within 1.15 times single device's error.",
    ),
    "healthy": (
        "No bug found: up to 4 ranks every variant stays within 1.05 times single device's error.",
        "No bug found. Furthest in bfloat16 is dk of ring, 1.25 times at 4 ranks.",
        "No bug found. Furthest in bfloat16 is dk of ring, 1.15 times at 8 ranks.",
    ),
    "a logic bug": (
        "No bug found: every kernel merely rounds.",
        "ring: dk is wrong. dk has 160 times single device's error in float16 at 4 ranks.",
        "zigzag: dk is wrong. dk has 160 times single device's error in bfloat16 at 4 ranks.",
    ),
    "not finite": ("No bug found: up to 4 ranks every variant stays within 1.15 times single device's error.",),
}


def test_a_planted_wrong_headline_is_found(tmp_path: Path) -> None:
    for name, titles in WRONG.items():
        table, change, *_ = EXPECTED[name]
        measured = run_of(tmp_path / name, table, change).measured
        assert all(contradictions(wrong, measured) for wrong in titles), name


def test_variants_that_differ_in_their_policy_alone_are_told_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path, shape(variants=("single_device", "ring")), tables.two_policies_alike)
    said = [each.sentence for each in material_of(run).found]
    assert len(said) == len({*said}) == 3
    assert any(sentence.startswith("ring (lse=bfloat16) merely rounds") for sentence in said)


def test_a_user_s_function_is_called_by_what_the_command_line_knows_it_by(tmp_path: Path) -> None:
    def wrong(rows: pd.DataFrame) -> pd.DataFrame:
        mine = rows.assign(options="fn=mine.py:ring,layout=bhsd", sharding="zigzag")
        return tables.times(mine, mine["tensor"] == "dk", 1e3)

    advice = answer(tmp_path, tables.FEW, wrong).advice
    command = "variant=callable variant.callable.fn=mine.py:ring variant.callable.layout=bhsd variant.sharding=zigzag"
    assert f"accuracy experiment=diagnose {command} names the step" in advice


@pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")
@pytest.mark.stress(1)
@pytest.mark.parametrize("name", ["calibration/amd-epyc", "million_tokens/nvidia-h200", "split_kv/nvidia-h200",
                                  "real_ranks/nvidia-h200-x2", "gate_power/amd-epyc"])  # fmt: skip
def test_a_measured_table_s_headline_is_not_contradicted_by_it(name: str) -> None:
    run = read_folder(REPORTS / name)
    object.__setattr__(run, "record", {**run.record, "experiment": "adhoc"})
    assert contradictions(answer_of(material_of(run)).title, run.measured) == []


def test_a_bug_names_what_to_do_and_what_to_take_instead_which_is_not_flagged_itself(tmp_path: Path) -> None:
    found = answer(tmp_path / "one", tables.FEW, tables.logic)
    assert "accuracy experiment=diagnose variant=ring" in found.advice
    assert "Take zigzag (1.15 times single device's error) instead." in found.advice.unescape()

    def both(rows: pd.DataFrame) -> pd.DataFrame:
        """zigzag is as near as before, but not finite at two ranks."""
        wrong = (rows["variant"] == "zigzag") & (rows["tensor"] == "dv") & (rows["world_size"] == 2)
        return tables.logic(rows).assign(nonfinite=rows["nonfinite"].mask(wrong, 7))

    found = answer(tmp_path / "both", tables.FEW, both)
    assert "Also flagged: " in found.advice
    assert "instead" not in found.advice


def test_matrix_and_picture_have_the_worst_first_with_its_ratio(tmp_path: Path) -> None:
    found = answer(tmp_path, shape(variants=("single_device", "ring", "llama3")), tables.excess)
    assert found.matrix is not None
    assert found.matrix.head == ("variant", "out", "dq", "dk", "dv", "lse", "delta")
    assert [[cell.text for cell in row] for row in found.matrix.rows] == [
        ["llama3", "1.15", "1.15", "▲ 3.45", "▲ 3.45", "1.15", "1.15"],
        ["ring", "1.15", "1.15", "1.15", "1.15", "1.15", "1.15"],
    ]
    assert "accused" in found.matrix.rows[0][3].kind
    assert [term.split(":")[0] for term in found.terms.split(" \u00b7 ")] == ["error", "single device", "lse", "delta"]
    assert found.picture is not None  # each line is named at its end
    assert all(end in found.picture.svg for end in ("3.45\u00d7 llama3", "1.15\u00d7 ring"))


def test_a_matrix_of_many_variants_is_cut_and_says_so(tmp_path: Path) -> None:
    found = answer(tmp_path, shape(world_sizes=(2,), seeds=(0,)), tables.many_variants)
    assert found.matrix is not None
    assert [row[0].text for row in found.matrix.rows] == [f"v{n:03}" for n in range(13, 3, -1)]
    assert found.more == "and 6 more, none worse"


@pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")
def test_a_published_answer_leads_where_the_table_bears_it_out_and_else_the_verdict(tmp_path: Path) -> None:
    source = REPORTS / "world_size_growth" / "nvidia-h200"
    made = material_of(read_folder(source))
    assert answer_of(made).title.startswith("Up to 64 ranks out, dq, dk and dv of ring attention stay within 1.4 times")
    worse = made.run.results.copy()
    worse.loc[worse["variant"] == "ring", "x_single_device"] *= 1.2
    object.__setattr__(made.run, "results", worse)
    assert answer_of(made).title.startswith(
        "llama3: dk and dv round more than the schedule explains. dk has 3.81 times"
    )
