"""`accuracy report RUN_FOLDER`: rebuild report.html from the tables of a run, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accuracy.cli import Parser, path_of, show, status_of
from accuracy.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.execute.run import Outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report's path and its most telling lines; 0, or 2 where the folder cannot be reported on."""
    parser = Parser("accuracy report", "Rebuild report.html from a run's tables.")
    parser.add_argument("folder", type=path_of, metavar="RUN_FOLDER", help="folder that holds results/ and run.json")
    given = parser.parse_args(arguments)
    return status_of("accuracy report", lambda: _report(given.folder))


def _report(folder: Path) -> None:
    from accuracy.report.build import write_report  # here, so that --help answers at once

    summary = write_report(folder)
    show(summary.path, *summary.lines)


def of_run(outcome: "Outcome") -> "pd.DataFrame | None":
    """Write the report of a run, print its first screen, and return the run's verdicts, or None where there is nothing
    to report on."""
    from accuracy.report.build import write_report

    try:
        summary = write_report(outcome.folder, results=outcome.results)
    except ConfigError as error:  # interrupted before the first case
        show(f"no report: {error}")
        return None
    show("", *summary.lines, "", f"report: {summary.path}")
    return summary.verdicts
