import re
import shutil
from pathlib import Path

import pytest

from accuracy.report import site
from tests.report import page_check

ROOT = Path(__file__).parents[2]
REPORTS, LOG = ROOT / "reports", ROOT / "experiments" / "FINDINGS.md"
COMMITTED = ("world_size_growth/nvidia-h200", "attribution/nvidia-h200", "depth/nvidia-h200-llama-405b")
pytestmark = pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_page_stands_alone(name: str) -> None:
    page = (REPORTS / name / "report.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert page_check.external_loads(page) == []
    assert page_check.repeated_identifiers(page) == set()


def test_the_site_has_a_page_of_every_run_and_an_index_of_them(tmp_path: Path) -> None:
    for name in ("bpt_backward/nvidia-h200", "depth/nvidia-h200-llama-8b"):
        shutil.copytree(REPORTS / name, tmp_path / "reports" / name)
    assert site.main([str(tmp_path / "reports"), str(tmp_path / "site")]) == 0
    index = (tmp_path / "site" / "index.html").read_text()
    for page in ("bpt_backward/nvidia-h200.html", "depth/nvidia-h200-llama-8b.html"):
        assert f'href="{page}"' in index
        assert (tmp_path / "site" / page).exists()


def test_a_folder_without_runs_is_a_mistake_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.main([str(tmp_path), str(tmp_path / "site")]) == 2
    assert "holds no EXPERIMENT/DEVICE/results.parquet" in capsys.readouterr().err


def test_every_finding_is_dated_and_the_newest_is_first() -> None:
    text = LOG.read_text()
    dates = re.findall(r"^- (\d{4}-\d{2}-\d{2}): \*\*", text, re.MULTILINE)
    assert len(dates) == text.count("\n- ")
    assert dates == sorted(dates, reverse=True)


def test_findings_link_to_every_published_report_and_to_nothing_that_is_missing() -> None:
    links = [LOG.parent / link for link in re.findall(r"\]\(([^)]+)\)", LOG.read_text())]
    assert [link for link in links if not link.exists()] == []
    published = {path.parent.resolve() for path in REPORTS.glob("*/*/results.parquet")}
    assert published - {link.resolve().parent for link in links} == set()
