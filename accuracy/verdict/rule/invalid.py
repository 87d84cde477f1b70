"""Rule 1: values that no rounding makes. No threshold: a single one is enough.

Non-finite where the reference is finite; a wrong shape or dtype; writing to memory that is not the variant's; elements
that turn non-finite when unwritten memory, memory around the inputs (padding), or a receive buffer before its transfer
has been waited for, is filled with NaN.
"""

from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import INVALID, Finding

WROTE = ("wrote to", "wrote next to")
MARKS = ("WrongResult:", *WROTE)  # in the reasons of failed cases


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    for reason in evidence.failures:
        if any(mark in reason for mark in MARKS) and _concerns(evidence.tensor, reason):
            if wrote := next((reason[reason.index(mark) :] for mark in WROTE if mark in reason), ""):
                return Finding(INVALID, reason, {"wrote": wrote})
            return Finding(INVALID, reason, {"returned": reason.rpartition("WrongResult: ")[2]})
    unwaited = evidence.reruns.where(evidence.reruns["unwaited"] > 0)
    if len(unwaited):
        count = int(unwaited["unwaited"].max())
        text = "values change when receive buffers are filled with NaN until their transfer has been waited for"
        return Finding(INVALID, f"{count} {text}: a race", {"unwaited": float(count)})
    rows = evidence.whole if (evidence.whole["nonfinite"] > 0).any() else evidence.probes
    broken = rows.where(rows["nonfinite"] > 0)
    if len(broken):
        count, seed = int(broken["nonfinite"][0]), broken["seed"][0]
        where = ", ".join(sorted(set(broken["inputs"])))
        return Finding(
            INVALID,
            f"{count} values are not finite (inputs {where}, seed {seed})",
            {"nonfinite": float(count), "inputs": where},
        )
    poisoned = evidence.reruns.where(evidence.reruns["poisoned"] > 0)
    if len(poisoned):
        count = int(poisoned["poisoned"].max())
        return Finding(
            INVALID,
            f"{count} values change when unwritten memory and memory beside the inputs are filled with NaN",
            {"poisoned": float(count)},
        )
    return None


def _concerns(tensor: str, reason: str) -> bool:
    """A reason that names a tensor is about that one; another one is about all."""
    _, mark, rest = reason.partition("WrongResult: ")
    named = rest.split(" ", 1)[0] if mark else ""
    return named == tensor or " came as " not in reason
