"""The labels of a verdict, gravest first, and what a rule returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from accuracy.core.dtype import PROBES

INVALID = "invalid"
LOGIC = "logic"
PRECISION_FLOOR = "precision_floor"
BIASED = "biased"
EXCESS_ROUNDING = "excess_rounding"
NONDETERMINISTIC = "nondeterministic"
ONE_RANK = "one_rank"
MISSING_RANKS = "missing_ranks"
HARDLY_CHECKED = "hardly_checked"
ROUNDING = "rounding"
NOT_MEASURED = "not_measured"

LABELS = (
    INVALID, LOGIC, PRECISION_FLOOR, BIASED, EXCESS_ROUNDING, NONDETERMINISTIC, ONE_RANK, MISSING_RANKS,
    HARDLY_CHECKED, ROUNDING, NOT_MEASURED,
)  # fmt: skip
BUGS = (INVALID, LOGIC)
TOO_LITTLE = (ONE_RANK, MISSING_RANKS, HARDLY_CHECKED)
"""Labels of a variant in which nothing was found, but of which too little was measured to call it healthy."""
NOTHING_FOUND = (*TOO_LITTLE, ROUNDING)
"""Labels of a variant in which nothing was found."""
Numbers = Mapping[str, float | str]


@dataclass(frozen=True)
class Finding:
    """The result of a rule for one tensor. kind: a key of `accuracy.verdict.words.FINDINGS`; numbers: those that its
    sentence and the table of verdicts need."""

    label: str
    kind: str
    numbers: Numbers = field(default_factory=dict)


def is_bug(label: str, numbers: Numbers) -> bool:
    """Return whether a finding is a fault and not rounding. A race is one, whatever its numbers were in a run."""
    return label in BUGS or bool(numbers.get("race"))


def badge(label: str, bug: bool) -> str:
    """Return the one word that leads a report and a notebook's cell: `BUG`, `INCOMPLETE`, or the label."""
    return "BUG" if bug else "INCOMPLETE" if label == MISSING_RANKS else label.replace("_", " ").upper()


def tone(badge: str) -> str:
    """Return the class of a badge's colour."""
    return {"BUG": "bad", "ROUNDING": "good"}.get(badge, "open")


def is_simple(numbers: Numbers) -> bool:
    """Return whether ordinary inputs show a finding: Gaussian ones, or those whose exact answer is known."""
    shown = str(numbers.get("inputs", "gaussian")).split(", ")
    return "gaussian" in shown or bool({*shown} & {*PROBES})
