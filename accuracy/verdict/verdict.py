"""One verdict per (variant, dtype, world size, tensor): the first rule that fires says what it is.

In: the results table of a run (any number of variants, problems, inputs, seeds). Out: a table with a row for each
tensor of each subject: label, rule, sentence, and the numbers behind it.
"""

from types import ModuleType

import numpy as np
import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.evidence import SUBJECT, Evidence, gather, times_single_device
from accuracy.verdict.label import NOT_MEASURED, ROUNDING, Finding
from accuracy.verdict.rows import typical
from accuracy.verdict.rule import biased, excess, invalid, ladder, nondeterministic, probe

RULES: tuple[ModuleType, ...] = (invalid, probe, ladder, biased, excess, nondeterministic)
"""In this order. What makes later numbers meaningless comes first."""

COLUMNS = (
    *SUBJECT,
    "tensor",
    "label",
    "rule",
    "sentence",
    "error_rel",
    "x_floor",
    "x_single_device",
    "slope",
    "cases",
    "numbers",
)


def verdicts(results: pd.DataFrame) -> pd.DataFrame:
    """The verdicts of a results table."""
    with np.errstate(all="ignore"):  # a fault's numbers may be infinite
        return pd.DataFrame([_row(evidence) for evidence in gather(results)], columns=list(COLUMNS))


def judge(evidence: Evidence) -> tuple[str, Finding]:
    """(rule's name, finding) of one tensor."""
    for rule in RULES:
        if (finding := rule.judge(evidence)) is not None:
            return rule.__name__.rpartition(".")[2], finding
    if not len(evidence.whole) and not len(evidence.probes):
        reasons = (*evidence.failures, *evidence.unsupported) or ("no numbers in the table",)
        return "", Finding(NOT_MEASURED, reasons[0])
    ratio = typical(times_single_device(evidence.whole))
    return "", Finding(ROUNDING, f"{ratio:.3g} times single device's error", {"x_single_device": ratio})


def _row(evidence: Evidence) -> dict[str, object]:
    rule, finding = judge(evidence)
    rows = evidence.whole
    return {
        **evidence.key,
        "tensor": evidence.tensor,
        "label": finding.label,
        "rule": rule,
        "sentence": finding.sentence,
        "error_rel": typical(rows["error_rel"]),
        "x_floor": typical(rows["x_floor"]),
        "x_single_device": typical(times_single_device(rows)) if len(rows) else float("nan"),
        "slope": ladder.slope_of(evidence),
        "cases": len(rows) + np.count_nonzero(evidence.probes["rank"] == ALL_RANKS),
        "numbers": finding.numbers,
    }
