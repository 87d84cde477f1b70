"""`accuracy-check RUN_FOLDER [--baseline FOLDER]`: did attention get less accurate? Exit status 0 to 5.

0 ok; 1 regression; 2 a mistake in the command, or a file that cannot be read; 3 incomplete: cases are missing, nothing
was measured, a rank died, or a second look is due; 4 no comparable baseline, with --require-baseline; 5 logic bug.
`accuracy-check update RUN_FOLDER --reason TEXT` makes a run the baseline.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError
from accuracy.gate.exits import Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the worst cells and `N passed, N failed, N skipped`; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["update"]:
            return _update(words[1:])
        return _check(words)
    except ConfigError as error:
        print(f"accuracy-check: {error}", file=sys.stderr)
        return Exit.USAGE


def _check(words: list[str]) -> int:
    given = _parser().parse_args(words)
    from accuracy.gate import (
        choice,  # here, so that --help answers at once
        files,
    )
    from accuracy.gate.decision import Question, decide
    from accuracy.gate.text import terminal
    from accuracy.gate.verdicts import verdicts
    from accuracy.results.run_table import read_run

    run = read_run(given.folder)
    second = read_run(given.second) if given.second else None
    question = Question(
        run=run,
        baseline=choice.baseline(run, given.baseline) if given.baseline else None,
        second=second,
        require_baseline=given.require_baseline,
        part=given.part,
        verdicts={**verdicts(run), **(verdicts(second) if second else {})},
    )
    decision = decide(question)
    if given.out is not None:
        _written(lambda: files.write(decision, given.out), given.out)
    print(terminal(decision, given.rows))
    return decision.exit


def _written(write: Any, folder: Path) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}); choose another --out") from error


def _update(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="accuracy-check update", description="Make a finished run the baseline.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--reason", required=True, help="why the baseline changes; kept in its log")
    parser.add_argument("--to", type=Path, default=Path("reports"), help="default: reports")
    given = parser.parse_args(words)
    from accuracy.cli.update import LOG, update

    try:
        target = update(given.folder, given.reason, given.to)
    except OSError as error:
        raise ConfigError(f"{given.to} cannot be written ({error.strerror}); choose another --to") from error
    print(target)
    print((target / LOG).read_text(encoding="utf-8").splitlines()[-1])
    return Exit.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="accuracy-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the output_dir of a run")
    parser.add_argument(
        "--baseline", type=Path, metavar="FOLDER", help="reports/NAME/DEVICE, or reports/NAME: the comparable one of it"
    )
    parser.add_argument("--second", type=Path, metavar="RUN_FOLDER", help="a second look: the same run, fresh seeds")
    parser.add_argument("--require-baseline", action="store_true", help="exit 4 where a cell has no baseline")
    parser.add_argument("--part", action="store_true", help="the run is a part of the baseline's matrix")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write check.json, junit.xml, summary.md, comment.md, compare.html"
    )
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="cells in the printed table (10)")
    return parser


if __name__ == "__main__":
    status = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: the status still counts
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
