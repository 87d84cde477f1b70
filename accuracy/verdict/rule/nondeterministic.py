"""Rule 1: the same run again. No threshold: the harness itself repeats bit for bit, so one differing element counts.

It leads, since numbers of one run say nothing of the next; but where unwritten memory, or a receive buffer too early,
is read, `invalid` names that.
The size of the change tells what differs. Sums in another order stay within the rounding of the format: an element's
change is at most `rounding_band` of the tensor's size, a few ulps. What is larger is other data: a race. A race that
strikes one call in 200 is seen in 920 repeats with 1 - (1 - 1/200)^920 = 99%.
"""

import math
from collections.abc import Mapping

from accuracy.core.dtype import rounding_band
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import NONDETERMINISTIC, Finding
from accuracy.verdict.rows import largest

RACE = "a race, other data was read, or random numbers were, as dropout's"
OTHER_ORDER = "sums were added in another order"


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    repeats = evidence.reruns.where(evidence.reruns["repeats_differ"] > 0)
    if not len(repeats) or any((evidence.reruns[name] > 0).any() for name in ("poisoned", "unwaited")):
        return None
    count, dtype = int(repeats["repeats_differ"].max()), str(repeats["dtype"][0])
    numbers: dict[str, float | str] = {"repeats_differ": float(count)}
    size = largest(repeats["repeats_size"])
    text = f"{count} values differ between runs ({dtype})"
    if math.isnan(size):
        return Finding(NONDETERMINISTIC, text, numbers)
    race = size > rounding_band(evidence.tensor, dtype)
    ranks = sorted({int(rank) for rank in repeats["rank"] if rank != ALL_RANKS})
    text += f", in {int(repeats['repeats_runs'].max())} runs, on ranks {', '.join(map(str, ranks))}"
    numbers |= {"repeats_size": size, "race": float(race)}
    return Finding(NONDETERMINISTIC, text + change(numbers), numbers)


def change(numbers: Mapping[str, float | str]) -> str:
    """How large what differs between runs is, and what makes such differences."""
    if "repeats_size" not in numbers:
        return ""
    what = RACE if numbers["race"] else OTHER_ORDER
    return f", by at most {float(numbers['repeats_size']):.2g} of the tensor's size: {what}"
