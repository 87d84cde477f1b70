"""`accuracy report RUN_FOLDER`: rebuild report.html from the tables of a run, without torch."""

from collections.abc import Sequence
from pathlib import Path

from accuracy.cli import Parser, status_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report's path and its most telling lines; 0, or 2 where the folder cannot be reported on."""
    parser = Parser("accuracy report", "Rebuild report.html from a run's tables.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="folder that holds results/ and run.json")
    given = parser.parse_args(arguments)
    return status_of("accuracy report", lambda: _report(given.folder))


def _report(folder: Path) -> None:
    from accuracy.report import build  # here, so that --help answers at once

    summary = build.write_report(folder)
    print(summary.path, *summary.lines, sep="\n")
