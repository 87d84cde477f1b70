import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accuracy.cli import check
from accuracy.gate import output
from accuracy.gate.decision import Question, decide
from accuracy.results.run_table import read_baseline, read_run
from tests.unit.conftest import Gate
from tests.unit.gate.made_up import MadeUp, case_id, with_error, write_baseline, write_run

HOSTILE = "<img src=x onerror=alert(1)>|[x](javascript:1) @everyone `'\" &amp; ]]>"
LOST = case_id("ring", "bfloat16", 4, 3)


def change(about: dict, rows: list[dict]) -> list[dict] | None:
    """A lost case, and dk of llama3 at 4 ranks twice as bad on rank 2 alone."""
    bad = {"variant": "llama3", "world_size": 4, "tensor": "dk", "rank": 2}
    twice = [with_error(row, 2 * row["error_rel"], row["single_device_rel"]) for row in rows]
    changed = [new if bad.items() <= old.items() else old for old, new in zip(rows, twice, strict=True)]
    return None if about["case_id"] == LOST else changed


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, baseline: Path) -> Path:
    folder = tmp_path_factory.mktemp("out")
    run = write_run(folder / "run", MadeUp(luck=1, change=change))
    assert check.main([str(run), "--baseline", str(baseline), "--out", str(folder / "files")]) == 1
    return folder / "files"


def test_junit_and_json_have_every_cell_with_its_numbers(out: Path) -> None:
    suites = ElementTree.parse(out / "junit.xml").getroot()
    assert suites.attrib == {"tests": "31", "failures": "1", "errors": "1", "skipped": "0"}
    assert suites.find("testsuite/properties/property[@name='device']").attrib["value"] == "Some GPU"  # type: ignore
    cases = suites.findall("testsuite/testcase")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases) == 31
    (failed,) = [case for case in cases if case.find("failure") is not None]
    assert failed.get("classname") == "made_up.llama3"
    found = {each.get("name"): each.get("value") for each in failed.findall("properties/property")}
    assert found.items() >= {"kernel": "flash_attn", "world_size": "4"}.items()
    assert float(found["worst_rank"]) > 1.9 * float(found["baseline_x_single_device"])
    assert [error.get("type") for case in cases for error in case.findall("error")] == ["missing"]
    content = json.loads((out / "check.json").read_text())
    assert content["exit"] == 1
    assert content["counts"] == {"passed": 29, "failed": 1, "incomplete": 1, "skipped": 0}
    worst = content["items"][0]
    assert (worst["label"], worst["rank"], len(worst["run"]["log_ratio_by_seed"])) == ("regression", 2, 8)
    assert worst["effect"] == pytest.approx(0.693, abs=0.01)  # ln 2, and 0.4% of noise over sqrt(8) seeds twice


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def test_markdown_begins_with_the_outcome_and_the_worst_cell_and_is_cut_where_it_is_too_long(
    out: Path, baseline: Path
) -> None:
    summary, comment = ((out / name).read_text() for name in ("summary.md", "comment.md"))
    for text, rows in ((summary, 31), (comment, 10)):
        assert "regression" in text.splitlines()[1]
        assert text.splitlines()[3].startswith("- **llama3 bfloat16 W=4 dk, rank 2**: ")
        assert (len(rows_of(text)), rows_of(text)[0].partition("W=")[0]) == (rows, "| llama3 bfloat16 ")
    found = decide(Question(read_run(out.parent / "run"), read_baseline(baseline)))
    for limit in (1500, 4000):
        text = output.markdown(found, limit, 1000)
        assert limit * 0.75 < len(text.encode()) <= limit
        assert "more: see check.json" in text
    assert output.COMMENT_BYTES <= 65_536


def test_hostile_names_and_control_characters_stay_text_in_every_format(gate: Gate, tmp_path: Path) -> None:
    def hostile(about: dict, rows: list[dict]) -> list[dict]:
        return [{**row, "variant": HOSTILE if row["variant"] == "ring" else row["variant"]} for row in rows]

    out, escape = tmp_path / "out", "\x1b[2J\x00"
    old = write_baseline(tmp_path / "base\x1b[31mline", MadeUp(provenance={"packages": {f"numpy{escape}": escape}}))
    packages = {"packages": {f"numpy{escape}": "2"}, "driver": escape}
    answer = gate(MadeUp(change=hostile, provenance=packages), "--out", str(out), "--part", against=old)
    assert all(line.isprintable() for line in answer.out.splitlines())
    junit = ElementTree.parse(out / "junit.xml").iter()
    assert HOSTILE in "".join(each.get("message", "") + each.get("classname", "") for each in junit)
    text = (out / "comment.md").read_text() + (out / "summary.md").read_text()
    assert [markup for markup in ("<img", "@everyone", "](", "\x1b") if markup in text] == []


def test_a_folder_that_cannot_be_written_is_a_mistake_in_one_line(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = gate(MadeUp(seeds=(0,)), "--out", str(tmp_path / "file" / "out"))
    assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_the_headline_names_the_seed_and_a_result_before_what_follows_from_it(gate: Gate) -> None:
    def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
        return {"delta": 9.0, "dv": 3.0}.get(tensor, 1.0) if (variant, seed) == ("ring", 5) else 1.0

    answer = gate(MadeUp(luck=1, worse=worse))
    assert answer.status == 1
    headline = answer.out.splitlines()[0]
    assert "ring bfloat16 W=" in headline
    assert " dv, rank " in headline or " dv: " in headline
    assert "seed 5 is +" in headline
