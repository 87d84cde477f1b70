"""`python -m accuracy.report.site REPORTS SITE`: a page of every published run, and an index.html that leads to them.

In: REPORTS/EXPERIMENT/DEVICE/results.parquet of each run. Out: SITE/EXPERIMENT/DEVICE.html. Needs no torch.
"""

import argparse
import html
import sys
from collections.abc import Sequence
from pathlib import Path

from accuracy.core.errors import ConfigError
from accuracy.report import build
from accuracy.report.build import ReportSummary, write_page
from accuracy.report.folder import NoReport

USAGE_ERROR = 2
INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>attention-accuracy: reports</title></head>
<body><h1>Published reports</h1>
<ul>
{items}
</ul></body></html>
"""


def write_site(reports: Path, site: Path) -> list[ReportSummary]:
    """Write every page and the index. Raises NoReport where there is no run, or one that cannot be reported on."""
    folders = sorted(path.parent for path in reports.glob("*/*/results.parquet"))
    if not folders:
        raise NoReport(f"{reports}: holds no EXPERIMENT/DEVICE/results.parquet; give the folder of published runs")
    pages = []
    for folder in folders:
        path = site / folder.parent.name / f"{folder.name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        pages.append(build.write_report(folder, (), path))
    write_page(site / "index.html", INDEX.format(items="\n".join(_item(page, site) for page in pages)).encode())
    return pages


def _item(page: ReportSummary, site: Path) -> str:
    place = page.path.relative_to(site)
    return f'<li><a href="{place.as_posix()}">{place.parent}, {place.stem}</a>: {html.escape(page.title)}</li>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the index is; 0, or 2 where a run cannot be reported on."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.report.site", description="Build all published pages.")
    parser.add_argument("reports", type=Path, metavar="REPORTS", help="folder of published runs")
    parser.add_argument("site", type=Path, metavar="SITE", help="folder to write, made where it is missing")
    given = parser.parse_args(arguments)
    try:
        pages = write_site(given.reports, given.site)
    except (NoReport, ConfigError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE_ERROR
    print(f"{given.site / 'index.html'}: {len(pages)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
