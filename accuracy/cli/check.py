"""`accuracy check RUN_FOLDER [--baseline FOLDER]`: did attention get less accurate? Exit status 0 to 5.

0 ok; 1 regression; 2 a mistake in the command, or a file that cannot be read; 3 incomplete: rows are not those that the
run ended with, nothing was measured, a rank died, or a second look is due; 4 no comparable baseline, with
--require-baseline; 5 logic bug.
`accuracy accept RUN_FOLDER --to FOLDER` makes a run the baseline.
"""

import sys
from collections.abc import Sequence

from accuracy.cli import Parser, path_of, show, status_of, whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the worst cells and `N passed, N failed, N skipped`; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["accept"]:  # as files of CI have it that call accuracy-check
        from accuracy.cli import accept

        return accept.main(words[1:])
    return status_of("accuracy check", lambda: _check(words))


def _check(words: list[str]) -> int:
    parser = Parser("accuracy check", __doc__)
    add = parser.add_argument
    add("folder", type=path_of, metavar="RUN_FOLDER", help="the output_dir of a run")
    add("other", type=path_of, nargs="?", metavar="OTHER_RUN", help="an earlier run to compare with; as --baseline")
    help_ = "a run, reports/NAME/DEVICE, or reports/NAME: the comparable one of it"
    add("--baseline", type=path_of, metavar="FOLDER", help=help_)
    add("--second", type=path_of, metavar="RUN_FOLDER", help="a second look: the same run, fresh seeds")
    add("--require-baseline", action="store_true", help="exit 4 where a cell has no baseline")
    add("--part", action="store_true", help="the run is a part of the baseline's matrix, or of its seeds")
    files = "check.json, junit.xml, summary.md, comment.md"
    add("--out", type=path_of, metavar="FOLDER", help=f"write {files}")
    add("--rows", type=whole, default=10, metavar="N", help="cells in the printed table (10)")
    given = parser.parse_args(words)
    if given.other and given.baseline:
        parser.error("give OTHER_RUN or --baseline, not both")
    from accuracy.gate.decision import Question, decide, verdicts  # here, so that --help answers at once
    from accuracy.gate.fingerprint import comparable_baseline
    from accuracy.gate.output import terminal, write
    from accuracy.results.run_table import named_faults, read_run

    run = read_run(given.folder)
    second = read_run(given.second) if given.second else None
    baseline = comparable_baseline(run, before) if (before := given.baseline or given.other) else None
    with named_faults(run, second, baseline):
        judged = verdicts(run) | (verdicts(second) if second else {})
        question = Question(run, baseline, second, given.require_baseline, given.part, verdicts=judged)
        decision = decide(question)
        if given.out is not None:
            write(decision, given.out)
        show(terminal(decision, given.rows))
    return decision.exit


if __name__ == "__main__":
    sys.exit(main())
