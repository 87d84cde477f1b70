"""`accuracy-report RUN_FOLDER`: rebuild report.html from the tables of a run, without torch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from accuracy.core.errors import ConfigError

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report's path and its most telling lines; 0, or 2 where the folder cannot be reported on."""
    parser = argparse.ArgumentParser(prog="accuracy-report", description="Rebuild report.html from a run's tables.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="folder that holds results/ and run.json")
    parser.add_argument("earlier", type=Path, nargs="*", metavar="EARLIER_RUN", help="to look back on, oldest first")
    given = parser.parse_args(arguments)
    folder = given.folder

    from accuracy.report import build  # here, so that --help answers at once
    from accuracy.report.folder import NoReport

    try:
        summary = build.write_report(folder, given.earlier)
    except (NoReport, ConfigError) as error:
        print(f"accuracy-report: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        print(f"accuracy-report: {folder}: report.html cannot be written ({error.strerror})", file=sys.stderr)
        return USAGE_ERROR
    print(summary.path)
    for line in summary.lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
