"""The words of a verdict, gravest first, and what each means."""

from dataclasses import dataclass, field

from accuracy.core.probes import PROBES

INVALID = "invalid"
LOGIC = "logic"
PRECISION_FLOOR = "precision_floor"
EXCESS_ROUNDING = "excess_rounding"
BIASED = "biased"
NONDETERMINISTIC = "nondeterministic"
ONE_RANK = "one_rank"
MISSING_RANKS = "missing_ranks"
ROUNDING = "rounding"
NOT_MEASURED = "not_measured"

MEANING = {
    INVALID: "gives values that are not finite, of a wrong shape or dtype, or from unwritten memory",
    LOGIC: "is wrong at any precision",
    PRECISION_FLOOR: "stops getting better at a coarser dtype than the case's",
    BIASED: "is biased to one side",
    EXCESS_ROUNDING: "rounds more than the schedule explains",
    NONDETERMINISTIC: "differs from run to run",
    ONE_RANK: "was measured on one rank only, though it shares its work among several",
    MISSING_RANKS: "was not measured on every number of ranks that was asked for",
    ROUNDING: "merely rounds",
    NOT_MEASURED: "was not measured",
}
LABELS = tuple(MEANING)
BUGS = (INVALID, LOGIC)
TOO_LITTLE = (ONE_RANK, MISSING_RANKS)
"""Labels of a variant in which nothing was found, but of which too little was measured to call it healthy."""
HEALTHY = (*TOO_LITTLE, ROUNDING)
"""Labels of a variant in which nothing was found."""


@dataclass(frozen=True)
class Finding:
    """What a rule says of a tensor. sentence: the evidence in plain words; numbers: by name, for the table."""

    label: str
    sentence: str
    numbers: dict[str, float | str] = field(default_factory=dict)


def is_bug(label: str, numbers: dict[str, float | str]) -> bool:
    """Whether a finding is of a fault, not of rounding. A race is one, whatever its numbers were in a run."""
    return label in BUGS or bool(numbers.get("race"))


def is_simple(numbers: dict[str, float | str]) -> bool:
    """Whether a finding needs no special inputs: Gaussian ones show it, or those whose exact answer is known."""
    shown = str(numbers.get("inputs", "gaussian")).split(", ")
    return "gaussian" in shown or bool({*shown} & {*PROBES})
