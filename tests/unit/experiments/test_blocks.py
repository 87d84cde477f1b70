"""Measured numbers of documents are their tables': a changed table, text or claim and a loose number are found."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from experiments.blocks import complaints, documents, loose, unclaimed

ROOT = PACKAGE.parent
TABLES = """
def blocks(tables):
    times = tables.csv("mine/times.csv")["times"]
    return {"most": f"{times.max():.2f} times", "text": "A word.\\n\\n| a |\\n|---|\\n| 1.5 |"}
"""
README = """# mine

## Prediction

It is 7.5 times.

## Finding

Measured with torch 2.11 (`seed=1.5`), at most <!-- table: most -->1.25 times<!-- end -->.

- <!-- table: text -->
  A word.

  | a |
  |---|
  | 1.5 |
  <!-- end -->

<!-- frozen: mine 000000000000 -->
Once it was 3.4%.
<!-- end -->
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder, reports = tmp_path / "experiments" / "mine", tmp_path / "reports" / "mine"
    folder.mkdir(parents=True)
    reports.mkdir(parents=True)
    (tmp_path / "README.md").write_text("At most <!-- table: mine.most -->1.25 times<!-- end -->.\n")
    (tmp_path / "experiments" / "FINDINGS.md").write_text("None.\n")
    (folder / "tables.py").write_text(TABLES)
    (folder / "README.md").write_text(README)
    (reports / "times.csv").write_text("times\n1.0\n1.25\n")
    assert list(complaints(tmp_path, write=True, freeze=True)) == []
    return tmp_path


def test_a_changed_table_is_found_in_every_document_and_written_by_make_docs(root: Path) -> None:
    assert "000000000000" not in (root / "experiments/mine/README.md").read_text()
    assert list(complaints(root)) == []
    (root / "reports/mine/times.csv").write_text("times\n1.0\n1.31\n")
    found = [(each.partition(":")[0], "frozen" in each) for each in complaints(root)]
    mine = "experiments/mine/README.md"
    assert sorted(found) == [("README.md", False), (mine, False), (mine, True)]
    assert all("frozen" in each for each in complaints(root, write=True))
    assert "1.31 times" in (root / "README.md").read_text()
    assert [*complaints(root, write=True, freeze=True), *complaints(root)] == []


WRONG = (
    ("1.25 times", "1.26 times", "not what its table says"),
    ("| 1.5 |", "| 1.6 |", "not what its table says"),
    ("3.4%", "3.5%", "compare them"),
    ("at most", "not 1.3 but at most", "outside of a block: "),
    ("at most", "in 3 of 4 cases at most", "outside of a block: "),
)


def test_a_planted_wrong_digit_or_a_number_of_no_block_is_found(root: Path) -> None:
    readme = root / "experiments/mine/README.md"
    text = readme.read_text()
    for old, new, what in WRONG:
        readme.write_text(text.replace(old, new, 1))
        (line,) = complaints(root)
        assert what in line


def test_a_claim_that_a_table_contradicts_and_a_number_of_no_claim_are_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accuracy.core.paths.EXPERIMENTS", root / "experiments")
    shutil.copytree(ROOT / "reports/attribution", root / "reports/attribution")
    shutil.copytree(ROOT / "experiments/attribution", root / "experiments/attribution")
    assert list(complaints(root)) == []
    readme, claims = (root / "experiments/attribution" / name for name in ("README.md", "claims.py"))
    readme.write_text(readme.read_text().replace("At least 80%", "At least 85%"))
    (line,) = complaints(root)
    assert line.endswith("no claim has 85")
    claims.write_text(claims.read_text() + "\n\ndef answer(results):\n    return [Claim('85 80 1', False, '')]\n")
    assert any("does not hold: 85" in line for line in complaints(root))


def test_numbers_that_no_claim_has_are_found_and_settings_predictions_code_and_versions_need_no_table() -> None:
    text = "A ring has 1.2 to\n1.4 times at 64 ranks, 99% of it by rounding, to a factor of five (8 times)."
    held = ["1.2", "1.4", "64", "99", "factor of five", "8"]
    assert [unclaimed(text, held), unclaimed(text, [])] == [[], held]
    assert unclaimed(text, ["1.25 11.4 64.5 999 18 factor of fifty"]) == held
    assert loose("On 4 H200s, torch 2.11, flash-attn 2.8.3, W = 2 (`x=1.5`, [a](b1.5.md)).\n\n    accuracy 1.5\n") == []


def test_an_experiment_has_a_readme_with_its_table_and_command_and_a_config_or_its_code_in_git() -> None:
    """`python experiments/NAME/script.py` looks for modules in that folder first: none hides one of Python's."""
    for folder in {path.parent for path in documents(ROOT)} - {ROOT, ROOT / "experiments"}:
        text, here = (folder / "README.md").read_text(), [path.name for path in folder.glob("*.py")]
        assert here or re.search(r"its code is in git at [0-9a-f]{7}\b", text), folder
        configs = "configs/experiment", "experiments/*/config/experiment"
        configured = [path for each in configs for path in ROOT.glob(f"{each}/{folder.name}.yaml")]
        assert configured or "__main__.py" in here, folder
        assert (folder / "tables.py").is_file() or "<!-- table: " not in text, folder
        if (ROOT / "reports" / folder.name).is_dir():  # from a number to its table, and to what measures it again
            assert re.search("<!-- (table|claims|frozen): ", text), folder
            assert f"](../../reports/{folder.name}/" in text, folder
            assert re.search(rf"experiment={folder.name}\b|experiments\.{folder.name}\b", text), folder
    folders = {path for path in (ROOT / "experiments").glob("*/") if any(path.rglob("*.py"))}
    assert {folder.name for folder in folders if not (folder / "README.md").is_file()} <= {"__pycache__"}
    assert not {path.stem for path in (ROOT / "experiments").rglob("*.py")} & sys.stdlib_module_names
