"""Rule 4: errors to one side. Rounding to nearest has none; a bias adds up over layers where rounding averages out.

Asked before the error's size: a large bias is an excess too, but names the cause. Two signed means: of the error, and
of the error away from zero (error x sign of the reference, so that a shrunken result shows whatever its sign). The unit
of the test is the seed: Student's t over at least 4 seeds must pass the 99.9% quantile (12.9 for 4 seeds), and the mean
must be at least a tenth of the error's root mean square, so that it matters. Single device's bias on the same inputs
is the kernel's, not the schedule's: only the bias beyond it counts. Healthy variants: below 0.01 of the
error (reports/world_size_growth). lse is left out: the last bits of kernels' exp and log are biased themselves (0.75 of
flash-attn's lse error, which is 1e-7). Of a user's function a bias on tied inputs alone is a fact, and no fault: it has
a kernel that rounds the weights of the softmax to 16 bits, as flash kernels do, or dk and dv of heads before their sum.
"""

import math

import numpy as np
from scipy.special import stdtrit

from accuracy.results.table import ALL_RANKS
from accuracy.verdict import inside
from accuracy.verdict.evidence import Evidence
from accuracy.verdict.label import BIASED, Finding
from accuracy.verdict.rows import Rows, mean

FEWEST_SEEDS = 4
LEVEL = 0.999
SHARE = 0.1
DEVIATIONS = 3.3
SIDES = {  # column of the error -> single device's, and what a value below and above zero means
    "error_bias": ("single_device_bias", "too small", "too large"),
    "error_outward": ("single_device_outward", "too near zero", "too far from zero"),
}


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    if evidence.tensor == "lse" or evidence.effective == "float64":
        return None
    rows = evidence.whole.joined(evidence.probes.where(evidence.probes["rank"] == ALL_RANKS))
    for (name,), same in rows.by("inputs").items():
        for column, (base, below, above) in SIDES.items():
            t, share = significance(same, column, base)
            if share > max(SHARE, DEVIATIONS / math.sqrt(evidence.counts(same)[0].sum())) and t > stdtrit(
                len(same) - 1, (1 + LEVEL) / 2
            ):
                side = mean(same[column])
                way = above if side > 0 else below
                text = f"{way} in every seed, by {share:.2g} of the error ({name} inputs, t = {t:.3g})"
                numbers = {"bias_t": math.copysign(t, side), "bias_share": share, "inputs": name}
                return Finding(BIASED, text, numbers | inside.weights(evidence, name))
    return None


def significance(rows: Rows, column: str, base: str) -> tuple[float, float]:
    """(t over the seeds, mean as a share of the root mean square error) of the signed error beyond single device's."""
    biases = rows[column]
    beyond = np.sign(mean(biases)) * biases - np.abs(np.nan_to_num(rows[base], nan=0.0, posinf=np.inf, neginf=-np.inf))
    if len(beyond) < FEWEST_SEEDS or np.isnan(beyond).any():
        return 0.0, 0.0
    size, error = max(0.0, mean(beyond)), mean(rows["error_rms"])
    spread = float(beyond.std(ddof=1)) / math.sqrt(len(beyond))
    return (size / spread if spread > 0 else math.inf if size > 0 else 0.0), (size / error if error > 0 else 0.0)
