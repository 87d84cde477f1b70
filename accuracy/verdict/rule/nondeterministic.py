"""Rule 6: the same run again. No threshold: the harness itself repeats bit for bit, so one differing element counts."""

from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import NONDETERMINISTIC, Finding


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    repeats = evidence.reruns.where(evidence.reruns["repeats_differ"] > 0)
    if not len(repeats):
        return None
    count, dtype = int(repeats["repeats_differ"].max()), repeats["dtype"][0]
    return Finding(NONDETERMINISTIC, f"{count} values differ between runs ({dtype})", {"repeats_differ": float(count)})
