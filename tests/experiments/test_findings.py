"""The log of findings: dated, newest first, and no published report without a line."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOG = ROOT / "experiments" / "FINDINGS.md"
ENTRY = re.compile(r"^- (\d{4}-\d{2}-\d{2}): \*\*", re.MULTILINE)
LINK = re.compile(r"\]\(([^)]+)\)")


def test_every_entry_is_dated_and_the_newest_is_first() -> None:
    dates = ENTRY.findall(LOG.read_text())
    assert len(dates) == LOG.read_text().count("\n- ")
    assert dates == sorted(dates, reverse=True)


def test_every_link_leads_somewhere() -> None:
    assert [link for link in LINK.findall(LOG.read_text()) if not (LOG.parent / link).exists()] == []


def test_every_published_report_of_an_experiment_has_its_line() -> None:
    published = {path.parent.resolve() for path in (ROOT / "reports").glob("*/*/results.parquet")}
    told = {(LOG.parent / link).resolve().parent for link in LINK.findall(LOG.read_text())}
    assert published - told == set()
