"""`python -m docs REPOSITORY SITE`: all pages, with one search, by Sphinx (the extra `site`).

In: a checkout, with REPORTS/EXPERIMENT/DEVICE/results.parquet of each published run. Out: SITE/index.html. A link that
leads nowhere is an error.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from accuracy.core.errors import ConfigError
from accuracy.report import build
from accuracy.report.folder import NoReport
from docs import pages
from docs.leaderboard import write_leaderboard
from docs.links import dead, relinked
from docs.pages import Report

USAGE_ERROR = 2
SETTINGS = {
    "project": "attention-accuracy",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_title": "attention-accuracy",
    "html_static_path": ["_static"],
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_extra_path": ["_whole"],
    "exclude_patterns": ["_whole", "_static"],
    "nb_execution_mode": "off",
    "default_role": "code",
    "myst_heading_anchors": 3,
    "suppress_warnings": ["myst.header"],  # a README may begin with any level
}


def write_reports(root: Path, whole: Path, chosen: Sequence[str] = ()) -> list[Report]:
    """The report of every published run, or of the chosen, as WHOLE/reports/EXPERIMENT/DEVICE/report.html. Raises
    NoReport where there is no run, or one that cannot be reported on."""
    folders = sorted(path.parent for path in (root / "reports").glob("*/*/results.parquet"))
    wanted = [path for path in folders if not chosen or f"{path.parent.name}/{path.name}" in chosen]
    if not wanted:
        raise NoReport(f"{root / 'reports'}: holds no EXPERIMENT/DEVICE/results.parquet; give a checkout with some")
    found = []
    for folder in wanted:
        place = folder.relative_to(root).as_posix()
        path = whole / place / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        found.append(Report(place, build.write_report(folder, path)))
    return found


def write_pages(root: Path, source: Path, reports: Sequence[Report]) -> None:
    """Everything that Sphinx reads."""
    found = pages.places(root, reports)
    texts = {"api.md": pages.API}
    with suppress(NoReport):  # many_ranks is not published
        board = write_leaderboard(root / "reports", source / "_whole" / pages.BOARD)
        texts[pages.LEADERBOARD] = pages.leaderboard_page(list(dict.fromkeys(map(str, board["variant"]))))
    findings = (root / pages.FINDINGS).read_text(encoding="utf-8")
    texts["index.md"] = pages.index(findings, reports, found, pages.LEADERBOARD in texts)
    texts |= {report.page: pages.report_page(report, found) for report in reports}
    for name, page in found.items():
        if page not in texts and name.endswith(".md"):
            texts[page] = relinked((root / name).read_text(encoding="utf-8"), name, page, found)
    for page, text in texts.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text, encoding="utf-8")
    shutil.copyfile(root / pages.TUTORIAL, source / found[pages.TUTORIAL])


def write_site(root: Path, site: Path, chosen: Sequence[str] = ()) -> int:
    """Sphinx's status: 0, or not where a page or a link is wrong; it says where."""
    from sphinx.cmd.build import main as sphinx  # here: the rest of the package does without

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        (source / "_static").mkdir()
        write_pages(root, source, write_reports(root, source / "_whole", chosen))
        lines = [f"{name} = {value!r}\n" for name, value in SETTINGS.items()]
        (source / "conf.py").write_text("".join(lines), encoding="utf-8")
        status = int(sphinx(["-q", "-W", "--keep-going", "-E", "-d", str(source / "_trees"), str(source), str(site)]))
    lost = dead(site)
    for link in lost:
        print(f"no such page: {link}", file=sys.stderr)
    return status or int(bool(lost))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the index is; 0, 1 where a link leads nowhere, 2 where a run cannot be reported on."""
    parser = argparse.ArgumentParser(prog="python -m docs", description="Build the site.")
    parser.add_argument("repository", type=Path, metavar="REPOSITORY", help="a checkout with reports/")
    parser.add_argument("site", type=Path, metavar="SITE", help="folder to write, made where it is missing")
    parser.add_argument("runs", nargs="*", metavar="EXPERIMENT/DEVICE", help="only these (all)")
    given = parser.parse_args(arguments)
    try:
        status = write_site(given.repository, given.site, given.runs)
    except ImportError as error:
        print(f"{parser.prog}: {error.name} is missing; pip install 'attention-accuracy[site]'", file=sys.stderr)
        return USAGE_ERROR
    except (NoReport, ConfigError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE_ERROR
    print(f"{given.site / 'index.html'}")
    return status
