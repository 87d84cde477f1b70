"""Rule 5: against the single-device kernel on the same inputs, over the seeds.

How much may a schedule round beyond its kernel? In 16-bit cases a block's result is rounded to the format once more
than single device's, independently: errors add in squares, so at most sqrt(1 + (floor / single device)^2) <= sqrt 2
times single device's. Where nothing is joined (one rank, no chunks) it may not round more at all. In float32 and
float64, and for lse in every dtype, each of n merges rounds in the format itself, about twice: sqrt(1 + 2 n). A margin
above that: 0.1 + 0.1 / sqrt(seeds), since blocks' results are not quite orthogonal and seeds spread (1% in large
problems, ten times that in small ones); 20% where nothing is joined, 50% of the random walk of n merges. sqrt 2 with
its margin is 1.63 for four seeds; AWS Neuron's gate allows 1.5.

That takes the partials for no larger than their sum, in squares, as they are where inputs are independent: Gaussian
ones. On others partials may cancel: on an attention sink the error of a healthy striped ring's dk is 3 times single
device's (experiments/inputs_that_matter). How far is bounded by the condition number of the sum, sum |terms| / |sum|,
since a partial is at most the sum of its terms' sizes, or by condition_rounding where that is more: it has what dq
inherits from the rounding of out. So where they are recorded (`conditions=true`) the floor counts so many times, and
where they are not, such inputs are not judged here, but where nothing is joined.

Beyond that, over single seeds and ranks: the largest element over 5 times single device's, or a rank's norm over 3
times (AWS Neuron's accuracy guide). Published rings stay within 1.27, and 1.39 on one rank (reports/world_size_growth).

Without a finer dtype in the table, a ratio beyond 3 (1 + n) is no rounding either: n + 1 roundings that all push one
way reach n + 1.
"""

import math

import numpy as np

from accuracy.core.dtype import FORMATS
from accuracy.verdict.evidence import Evidence, times_single_device
from accuracy.verdict.label import EXCESS_ROUNDING, LOGIC, Finding
from accuracy.verdict.rows import Rows, largest, typical

INDEPENDENT = "gaussian"
EXACT = "float64"  # the reference's own dtype: a ratio of two errors of its size says nothing
NOTHING_JOINED, WALK = 1.2, 1.5
LARGEST, ONE_RANK = 5.0, 3.0
COHERENT = 3.0


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    if evidence.effective == EXACT:
        return None
    for name, rows, ranks in evidence.by_inputs:
        cancelled = cancellation(evidence, name, rows)
        if math.isnan(cancelled):
            continue
        ratio = typical(times_single_device(rows))
        limit = limit_of(evidence, rows, cancelled)
        numbers: dict[str, float | str] = {"x_single_device": ratio, "limit": limit, "inputs": name}
        if len(evidence.rungs) == 1 and ratio > COHERENT * (1 + evidence.merges):
            text = f"{ratio:.3g} times single device's error: more than {evidence.merges + 1} roundings can add up to"
            return Finding(LOGIC, text, numbers)
        if ratio > limit:
            text = f"{ratio:.3g} times single device's error over {len(rows)} seeds; the schedule explains {limit:.3g}"
            return Finding(EXCESS_ROUNDING, text, numbers)
        if finding := _outlier(evidence, rows, ranks, limit, numbers):
            return finding
    return None


def cancellation(evidence: Evidence, inputs: str, rows: Rows) -> float:
    """How many times larger than their sum the partials may be, all together; NaN where that is unknown."""
    independent = inputs == INDEPENDENT or evidence.tensor == "lse" or evidence.merges == 0
    return 1.0 if independent else typical(np.fmax(rows["condition_sum"], rows["condition_rounding"]))


def limit_of(evidence: Evidence, rows: Rows, cancelled: float) -> float:
    """The ratio to single device that the schedule's extra roundings explain."""
    merges = evidence.merges
    if merges == 0:
        return NOTHING_JOINED
    if evidence.tensor == "lse" or FORMATS[evidence.effective].bytes > 2:
        return WALK * math.sqrt(1 + 2 * merges * cancelled**2)
    margin = 1.1 + 0.1 / math.sqrt(len(rows))
    floor = typical(rows["floor_rel"]) / max(typical(rows["single_device_rel"]), typical(rows["floor_rel"]))
    return max(NOTHING_JOINED, margin * math.sqrt(1 + (floor * cancelled) ** 2))


def _outlier(
    evidence: Evidence, rows: Rows, ranks: Rows, limit: float, numbers: dict[str, float | str]
) -> Finding | None:
    """A single seed or rank far beyond the limit of the whole."""
    element = largest(rows["error_max"] / rows["single_device_max"])
    if element > LARGEST * max(1.0, limit / NOTHING_JOINED / math.sqrt(2)):
        text = f"the largest error is {element:.3g} times single device's (allowed: {LARGEST:g})"
        return Finding(EXCESS_ROUNDING, text, numbers | {"x_single_device_max": element})
    allowed = max(ONE_RANK, 2 * limit)
    times = times_single_device(ranks)
    worst = largest(times)
    if worst > allowed:
        rank = int(ranks["rank"][np.nanargmax(times)])
        text = f"{worst:.3g} times single device's error on rank {rank} (allowed there: {allowed:.3g})"
        return Finding(EXCESS_ROUNDING, text, numbers | {"x_single_device_rank": worst})
    return None
