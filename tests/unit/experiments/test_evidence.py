"""Evidence is of a clean tree; what has ended is measured again only with another command, code or configuration."""

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from experiments import evidence
from experiments.blocks import changed
from experiments.evidence import Run, account, folder_of, measure, publish_finished, runs

ROOT = Path(__file__).parents[3]
SCRIPT = Run("mine/cpu.csv", "cpu", 5, 'echo a >> "$FOLDER"/out.csv', {"mine/cpu.csv": "out.csv"})


def test_a_finished_run_is_skipped_another_command_is_not_and_a_failed_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "runs", lambda: [SCRIPT])
    monkeypatch.setattr(evidence, "commit_of_clean_tree", lambda root: "0123456789")
    words = ["cpu", "--to", str(tmp_path)]
    assert [evidence.main(words), evidence.main(words), evidence.main(["cpu", "1", *words[1:]])] == [0, 0, 0]
    assert (folder_of(SCRIPT, tmp_path) / "out.csv").read_text() == "a\n"
    table = publish_finished(tmp_path, tmp_path / "reports")
    assert (tmp_path / "reports/mine/cpu.csv").read_text() == "a\n"
    assert table[["run", "commit"]].to_numpy().tolist() == [["mine/cpu.csv", "0123456789"]]
    written = (tmp_path / "reports" / evidence.ACCOUNT).read_text()
    publish_finished(tmp_path / "another_checkout", tmp_path / "reports")
    assert (tmp_path / "reports" / evidence.ACCOUNT).read_text() == written
    other = SCRIPT._replace(command="false")  # of later code: what was measured of the earlier one stays
    monkeypatch.setattr(evidence, "runs", lambda: [other])
    publish_finished(tmp_path, tmp_path / "reports")
    assert (tmp_path / "reports" / evidence.ACCOUNT).read_text() == written
    assert not evidence.is_finished(other, tmp_path, evidence.published_accounts(tmp_path / "reports"))
    assert not account(SCRIPT._replace(command="true"), tmp_path)
    assert not measure(SCRIPT._replace(place="mine/b.csv", command="false"), tmp_path, "")
    assert evidence.main(["cpu", "2", *words[1:]]) == 2
    assert "allowed: 1 to 1" in capsys.readouterr().err


def test_a_run_with_a_failed_case_is_tried_once_more(tmp_path: Path) -> None:
    for status, tries in (("failed", 2), ("ok", 1)):
        run = SCRIPT._replace(place=f"mine/{status}.csv")
        folder = folder_of(run, tmp_path)
        (folder / "results").mkdir(parents=True)
        pd.DataFrame({"case_id": ["a"], "status": [status]}).to_parquet(folder / "results/a.parquet")
        assert measure(run, tmp_path, "0123456789")
        assert (folder / "out.csv").read_text() == "a\n" * tries


def test_a_tree_that_is_not_committed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "runs", lambda: [SCRIPT])
    assert evidence.main(["cpu", "--to", str(tmp_path)]) == 2  # no checkout
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a").write_text("")
    assert evidence.main(["cpu", "--to", str(tmp_path)]) == 2
    assert not (tmp_path / "mine-cpu.csv").exists()


def test_every_page_of_generated_numbers_has_a_run_whose_table_is_published() -> None:
    assert [run.place for run in runs() if not (ROOT / "reports" / run.place).exists()] == []
    generated = {path.parent.name for path in (ROOT / "experiments").glob("*/tables.py")}
    assert not generated - {run.place.partition("/")[0] for run in runs()}


def test_each_number_of_a_block_that_differs_from_a_commit_is_a_line(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "experiments/mine").mkdir(parents=True)
    pages = [tmp_path / "experiments/mine/README.md", tmp_path / "experiments/FINDINGS.md", tmp_path / "README.md"]
    texts = ["<!-- table: a -->1.25 of 1,000 times, 3e-9<!-- end --> <!-- table: b -->2<!-- end -->", "None.", "None."]
    for page, text in zip(pages, texts, strict=True):
        page.write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    assert list(changed(tmp_path, "HEAD")) == []
    pages[0].write_text("<!-- table: a -->1.50 of 1,000 times, 2e-9<!-- end --> <!-- table: c -->2<!-- end -->")
    pages[2].write_text("<!-- table: mine.a -->1.50 of 1,000 times, 2e-9<!-- end -->")
    numbers = ["mine.a: 1.25 -> 1.50 (+20.00%)", "mine.a: 3e-9 -> 2e-9 (-33.33%)"]
    assert list(changed(tmp_path, "HEAD")) == [*numbers, "mine.b: is gone", "mine.c: is new"]
