"""The gate: did a change make attention less accurate? Reads tables only; never imports torch. evidence -> cell ->
rules (no baseline needed), statistics (against a baseline) -> decision -> what is written"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of `accuracy check`. Public: CI files of others depend on them."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCOMPLETE = 3
    NO_BASELINE = 4
    LOGIC = 5


WORDS = {
    Exit.OK: "ok",
    Exit.REGRESSION: "regression",
    Exit.USAGE: "usage or configuration",
    Exit.INCOMPLETE: "incomplete",
    Exit.NO_BASELINE: "no comparable baseline",
    Exit.LOGIC: "logic bug",
}
ADVICE = {
    Exit.OK: "Nothing to do.",
    Exit.REGRESSION: "Mend it, or accept a run of 24 seeds: accuracy accept RUN_FOLDER --to BASELINE --reason WHY.",
    Exit.INCOMPLETE: "Mend what failed and repeat the run's command for the missing; what is undecided needs --second.",
    Exit.NO_BASELINE: "accuracy accept RUN_FOLDER --to BASELINE --reason WHY makes a run of 24 seeds the baseline.",
}
