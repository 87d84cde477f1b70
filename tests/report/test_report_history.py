from pathlib import Path

import pytest

from accuracy.cli import report
from tests.gate.made_up import MadeUp, write_run
from tests.report import page_check


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The last of three has dk of llama3 a third up."""

    def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
        return 1.33 if (variant, size, tensor) == ("llama3", 4, "dk") else 1.0

    def started(day: int) -> dict[str, str]:
        return {"started": f"2026-11-{day:02d}T08:00:00+00:00"}

    small = MadeUp(sizes=(2, 4, 8), seeds=(0, 1))
    made = small.but(about=started(1)), small.but(about=started(2)), small.but(about=started(3), worse=worse)
    return [write_run(tmp_path / f"run{number}", each) for number, each in enumerate(made)]


def test_the_report_of_several_runs_draws_each_cell_s_trend(runs: list[Path]) -> None:
    assert report.main([str(runs[2]), str(runs[0]), str(runs[1])]) == 0
    page = (runs[2] / "report.html").read_text()
    section = page[page.index('<section id="history"') :].partition("</section>")[0]
    assert section.count('<svg class="spark"') == 40
    first = section[section.index("<tbody>") :].partition("</tr>")[0]
    assert "llama3 bfloat16 W=4 dk" in first
    assert "1.20 → 1.20 → 1.59" in first
    assert "2 further cells changed less" in section
    assert page_check.dangerous(page) == []
    assert page_check.repeated_identifiers(page) == set()


def test_the_report_of_one_run_has_no_history(runs: list[Path]) -> None:
    assert report.main([str(runs[0])]) == 0
    assert 'id="history"' not in (runs[0] / "report.html").read_text()


def test_an_earlier_run_that_is_none_is_a_mistake_in_one_line(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(runs[0]), str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert "nowhere: no such folder" in error
    assert len(error.splitlines()) == 1
