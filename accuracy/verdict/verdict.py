"""One verdict for each (variant, dtype, world size, tensor): the first rule that fires decides, but what special inputs
alone break does not hide what ordinary ones show.

In: the results table of a run (any number of variants, problems, inputs, seeds). Out: a table with a row for each
tensor of each subject: label, rule, sentence, and the numbers behind it.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict import words
from accuracy.verdict.evidence import SUBJECT, Evidence, gather, times_single_device
from accuracy.verdict.inside import MARK
from accuracy.verdict.label import INVALID, LOGIC, NOT_MEASURED, ROUNDING, Finding, is_simple
from accuracy.verdict.rows import typical
from accuracy.verdict.rule import counted, excess, factor, ladder

RULES: tuple[tuple[str, Callable[[Evidence], Finding | None]], ...] = (
    ("nondeterministic", counted.differs_from_run_to_run),
    ("invalid", counted.invalid),
    ("probe", counted.probe),
    ("factor", factor.leading_factor),
    ("ladder", ladder.ladder),
    ("beyond", ladder.beyond),
    ("factor", factor.hidden_factor),
    ("biased", factor.biased),
    ("excess", excess.excess),
)
"""In this order. What makes later numbers meaningless comes first."""

COLUMNS = (
    *SUBJECT, "tensor", "label", "rule", "finding", "sentence", "error_rel", "x_floor", "x_single_device", "slope",
    "cases", "numbers",
)  # fmt: skip


def verdicts(results: pd.DataFrame) -> pd.DataFrame:
    """The verdicts of a results table."""
    with np.errstate(all="ignore"):  # a fault's numbers may be infinite
        return pd.DataFrame([_row(evidence) for evidence in gather(results)], columns=list(COLUMNS))


def judge(evidence: Evidence) -> tuple[str, Finding]:
    """(rule's name, finding) of one tensor."""
    special: tuple[str, Finding] | None = None  # what special inputs alone show
    fact: tuple[str, Finding] | None = None
    for name, rule in RULES:
        finding = rule(evidence)
        if finding is None:
            continue
        if MARK in finding.numbers:
            fact = fact or (name, finding)
        elif special is None and finding.label == INVALID and not is_simple(finding.numbers):
            special = name, finding
        elif special is None or (finding.label == LOGIC and is_simple(finding.numbers)):
            return name, finding
    if found := special or fact:
        return found
    if not len(evidence.all_ranks) and not len(evidence.probes):
        reasons = (*evidence.failures, *evidence.unsupported) or ("no numbers in the table",)
        return "", Finding(NOT_MEASURED, NOT_MEASURED, {"reason": reasons[0]})
    return "", Finding(ROUNDING, ROUNDING, {"x_single_device": typical(times_single_device(evidence.all_ranks))})


def _row(evidence: Evidence) -> dict[str, object]:
    rule, finding = judge(evidence)
    rows = evidence.all_ranks
    return {
        **evidence.key,
        "tensor": evidence.tensor,
        "label": finding.label,
        "rule": rule,
        "finding": finding.kind,
        "sentence": words.finding(finding.kind, finding.numbers, evidence.tensor, evidence.dtype),
        "error_rel": typical(rows["error_rel"]),
        "x_floor": typical(rows["x_floor"]),
        "x_single_device": typical(times_single_device(rows)) if len(rows) else float("nan"),
        "slope": ladder.slope_of(evidence),
        "cases": len(rows) + np.count_nonzero(evidence.probes["rank"] == ALL_RANKS),
        "numbers": dict(finding.numbers),
    }
