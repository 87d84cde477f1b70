import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from accuracy.cli import check
from accuracy.gate import output
from accuracy.gate.decision import Question, decide
from accuracy.results.run_table import read_baseline, read_run
from tests.gate.conftest import Gate
from tests.gate.made_up import MadeUp, case_id, with_error, write_baseline, write_run
from tests.report import page_check

HOSTILE = "<img src=x onerror=alert(1)>|[x](javascript:1) @everyone `'\" &amp; ]]>"
LOST = case_id("ring", "bfloat16", 4, 3)


def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
    return 1.2 if (variant, size, tensor) == ("llama3", 4, "dk") else 1.0


BAD = MadeUp(luck=1, worse=worse, change=lambda about, rows: None if about["case_id"] == LOST else rows)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, baseline: Path) -> Path:
    folder = tmp_path_factory.mktemp("out")
    run = write_run(folder / "run", BAD)
    assert check.main([str(run), "--baseline", str(baseline), "--out", str(folder / "files")]) == 1
    return folder / "files"


def test_junit_has_a_case_for_every_cell_with_fingerprint_and_metrics(out: Path) -> None:
    suites = ElementTree.parse(out / "junit.xml").getroot()
    assert suites.attrib == {"tests": "31", "failures": "1", "errors": "1", "skipped": "0"}
    cases = suites.findall("testsuite/testcase")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases) == 31
    (failed, *_) = [case for case in cases if case.find("failure") is not None]
    assert failed.get("classname") == "made_up.llama3"
    properties = {each.get("name"): each.get("value") for each in failed.findall("properties/property")}
    assert properties.items() >= {"kernel": "flash_attn", "world_size": "4"}.items()
    assert float(properties["x_single_device"]) > float(properties["baseline_x_single_device"])
    assert [case.find("error").get("type") for case in cases if case.find("error") is not None] == ["missing"]
    suite = {each.get("name"): each.get("value") for each in suites.findall("testsuite/properties/property")}
    assert suite["device"] == "Some GPU"


def test_json_has_every_cell_and_its_numbers_by_seed(out: Path) -> None:
    content = json.loads((out / "check.json").read_text())
    assert content["exit"] == 1
    assert content["counts"] == {"passed": 29, "failed": 1, "incomplete": 1, "skipped": 0}
    worst = content["items"][0]
    assert worst["label"] == "regression"
    assert len(worst["run"]["log_ratio_by_seed"]) == 8
    assert worst["effect"] == pytest.approx(0.182, abs=0.01)  # ln 1.2, and 0.4% of noise over sqrt(8) seeds twice


def test_markdown_begins_with_the_outcome_and_the_worst_cell_and_is_cut_where_it_is_too_long(
    out: Path, baseline: Path
) -> None:
    lines = (out / "summary.md").read_text().splitlines()
    assert "regression" in lines[1]
    table = [text for text in lines if text.startswith("|")]
    assert table[2].startswith("| llama3 ")
    assert len(table) == 2 + 31
    assert len([text for text in (out / "comment.md").read_text().splitlines() if text.startswith("|")]) == 2 + 10
    found = decide(Question(read_run(out.parent / "run"), read_baseline(baseline)))
    for limit in (1500, 4000):
        text = output.markdown(found, limit, 1000)
        assert limit * 0.8 < len(text.encode()) <= limit
        assert "more: see check.json" in text
    assert output.COMMENT_BYTES <= 65_536


def test_the_page_loads_nothing_runs_nothing_and_begins_with_the_worst_cell(out: Path) -> None:
    page = (out / "compare.html").read_text()
    assert page_check.external_loads(page) == []
    assert page_check.dangerous(page) == []
    assert page_check.repeated_identifiers(page) == set()
    assert not [each for each in page_check.elements(page) if each.tag == "script"]
    cells = page[page.index('<section id="cells"') :]
    first = cells[cells.index("<tbody>") :][:300]
    assert "llama3" in first
    assert "regression" in first


def one_rank(about: dict, rows: list[dict]) -> list[dict]:
    """dk of llama3 at 4 ranks is twice as bad on rank 2 alone."""
    bad = {"variant": "llama3", "dtype": "bfloat16", "world_size": 4, "tensor": "dk", "rank": 2}
    return [
        with_error(row, row["error_rel"] * 2, row["single_device_rel"]) if bad.items() <= row.items() else row
        for row in rows
    ]


def test_the_failed_cell_its_rank_and_tensor_come_first_and_are_marked(gate: Gate, tmp_path: Path) -> None:
    answer = gate(MadeUp(luck=1, change=one_rank), "--out", str(tmp_path / "out"))
    assert answer.status == 1
    place = "llama3 bfloat16 W=4 dk, rank 2"
    assert answer.out.splitlines()[0].partition(". ")[2].startswith(f"{place}: error on the worst")
    for name in ("comment.md", "summary.md"):
        lines = (tmp_path / "out" / name).read_text().splitlines()
        assert lines[3].startswith(f"- **{place}**: error on the worst rank +")
    page = (tmp_path / "out" / "compare.html").read_text()
    first = page[page.index('<section id="answer"') : page.index("</header>")]
    assert f'<h1 id="answer-title">Regression in {place}: error on the worst rank +' in first
    row = first[first.index("<tbody>", first.index('class="matrix"')) :].partition("</tr>")[0]
    assert "llama3 bfloat16 W=4</th>" in row
    assert "single device: the same kernel run once on the whole sequence" in first
    assert row.count("\u2718") == row.count("accused") == 1
    assert "\u2718 2.4" in row  # twice 1.2, on that rank: all ranks together have 1.2 as before
    assert "<small>rank 2, was 1.2" in row
    gate(MadeUp(luck=1), "--out", str(tmp_path / "healthy"))
    healthy = (tmp_path / "healthy" / "compare.html").read_text()
    assert "No cell is worse than the baseline." in healthy
    assert 'class="flagged' not in healthy


def hostile(about: dict, rows: list[dict]) -> list[dict]:
    return [{**row, "variant": HOSTILE if row["variant"] == "ring" else row["variant"]} for row in rows]


def test_hostile_names_and_control_characters_stay_text_in_every_format(gate: Gate, tmp_path: Path) -> None:
    out = tmp_path / "out"
    gate(MadeUp(change=hostile), "--out", str(out), "--part")
    page = (out / "compare.html").read_text()
    assert page_check.dangerous(page) == []
    assert "&lt;img src=x" in page
    junit = ElementTree.parse(out / "junit.xml").iter()
    assert HOSTILE in "".join(each.get("message", "") + each.get("classname", "") for each in junit)
    text = (out / "comment.md").read_text() + (out / "summary.md").read_text()
    for markup in ("<img", "@everyone", "]("):
        assert markup not in text
    escape = "\x1b[2J\x00"
    old = write_baseline(tmp_path / "base\x1b[31mline", MadeUp(provenance={"packages": {f"numpy{escape}": escape}}))
    packages = {"packages": {f"numpy{escape}": "2"}, "driver": escape}
    answer = gate(MadeUp(provenance=packages), "--out", str(out), against=old)
    assert all(line.isprintable() for line in answer.out.splitlines())
    ElementTree.parse(out / "junit.xml")
    assert "\x1b" not in (out / "comment.md").read_text() + (out / "compare.html").read_text()


def test_a_folder_that_cannot_be_written_is_a_mistake_in_one_line(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = gate(MadeUp(seeds=(0,)), "--out", str(tmp_path / "file" / "out"))
    assert answer.status == 2
    assert len(answer.err.splitlines()) == 1
