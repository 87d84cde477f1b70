"""More error than the schedule explains, against the single-device kernel on the same inputs, over the seeds.

How much may a schedule round beyond its kernel? In 16-bit cases a block's result is rounded to the format once more
than single device's, independently: errors add in squares, so at most sqrt(1 + (floor / single device)^2) <= sqrt 2
times single device's. dq and dk have the rounding of out too, by delta = dout . out, and a joined out is rounded once
more: sqrt 2 times, whatever share of single device's error that is. Where nothing is joined (one rank, no chunks) it
may not round more at all. In float32 and float64, and for lse in every dtype, each of n merges rounds in the format
itself, about twice: sqrt(1 + 2 n). A margin above that: 10%, since blocks' results are not quite orthogonal, and 50% of
the random walk of n merges (or of another order of sums, where there are none); in 16 bits at least 20% where nothing
is joined, and 10% over the root of the seeds where something is.

What is compared must have digits: where an answer happens to be exact in the format, single device's error is 0. Each
side counts as at least one rounding, 0.41 u (`accuracy.verdict.floor.LEVEL`). In float32 and float64 the weights
exp(s - lse) inherit the roundings of lse and of two scores, which single device may escape: where one key has all the
weight and forward and backward add up s in one order, exp(s - s) = 1. The D products of a score are added one after
another, and the j-th running sum is sqrt(j / D) times s, so the roundings of a score make 0.41 u |s| sqrt((D + 1) / 2);
lse's own rounding and both scores' are 0.41 u |lse| sqrt(D + 2): at least that counts.

The ratio of two errors scatters. The mean square of n errors that move by themselves has a relative standard deviation
of about 1 / sqrt(n), its root half of that. Elements of a row move together, so n is the rows of the tensor (tokens x
heads); and an element that carries the share f = (max / rms)^2 / elements of the mean square adds f^2. So the logarithm
of the ratio of two errors has the variance (1 / n + f^2 + 1 / m + g^2) / 4, and the mean over k seeds a k-th. Five
standard deviations, 3e-7 to one side, are allowed beyond the 10%.

That takes the partials for no larger than their sum, in squares, as they are where inputs are independent: Gaussian
ones. On others partials may cancel (experiments/inputs_that_matter). How far is bounded by the condition number of the
sum, sum |terms| / |sum|, since a partial is at most the sum of its terms' sizes, or by condition_rounding where that is
more: it has what dq inherits from the rounding of out. So where they are recorded (`conditions=true`) the floor counts
so many times, of each seed and rank its own, and where they are not, such inputs are not judged here, but where nothing
is joined, and no function of a user's may have rounded its scores.

Kernels with autograd's backward (`BY_AUTOGRAD`) need the condition number in 16 bits on Gaussian inputs too. On one
device delta is the softmax's own, in float32. A block's gradients begin with its share of dout, rounded, and with an
lse's gradient made of the rounded out of block and whole; and what comes by out and what by lse are rounded each before
they are added. So terms of the sums are rounded, not only sums: condition_rounding.

Kernels that quantise are judged on Gaussian inputs alone: on others a block's scale is another one than the whole's.

Beyond that, over single seeds and ranks: the largest element over 5 times single device's, or a rank's norm over 3
times (AWS Neuron's accuracy guide).

A function of a user's has a kernel of its own, of which nothing is known. In 16-bit cases it may round at eight places
where this kernel has float32 (scores, P, dP, dS, products, blocks) and sum gradients in 16 bits, as torch's does on a
CPU: 4 times, and where scores are large, as on peaked inputs, 4 times what their rounding makes: u times the softmax's
condition number. Scores that spread by a move the mean of a row's weights by the root of (a^2 + a^4) times the error of
one: as much more than at a = 1. Weights of 33,000 keys are below float16's least normal number. On several ranks its
own ratio on one rank is the measure, where that is in the table: times what merges explain. In float32, and for lse, it
may add in any order: 64 terms one after another are sqrt 64 times as far as in a tree. So may a published package,
whose blocks may be its own.

A sum in 16 bits grows with its length: autograd adds what each block of 64 keys gives to dq in the case's dtype. The
j-th of n running sums is sqrt(j / n) of the whole where terms are independent, and rounding it once moves it by 0.41 u
of itself: 0.41 u sqrt(n / 2) in all. At 32 blocks, 2,048 keys, that is the 4 times above. Of each further block it is
added in squares, with the 50% of a random walk: 24 times at 33,000 keys, where it is 16 if nothing else rounds. An
error between what the 4 times and that allow is a fact, and no fault. Of dk and dv the terms are queries of all heads
that share a key. out may be such a sum too, and so delta, dq and dk have what is made of it: both add in squares, to
sqrt 2 of the longer one at most, within the 50%. In float32 no such sum is allowed: where that dtype is in the table,
what is wrong in it is found.

dP and delta that are stored in 16 bits are multiples of a spacing. Their difference is rounded alike for all keys whose
dP has one exponent, by 0.2 u of dP, delta being small; and where a function takes exp(s - max s) and autograd goes
through the maximum, the sum of all that goes to the largest score. dS of n keys with Gaussian scores adds up like
sqrt(e / n) of it, so dq and dk are off by 0.12 u sqrt n of themselves (measured: 0.09 u sqrt n), beside the rest.

Without a finer dtype in the table, a ratio beyond 3 (1 + n) is no rounding either: n + 1 roundings that all push one
way reach n + 1.
"""

import math

import numpy as np

from accuracy.core.dtype import REFERENCE_ERROR, form_of
from accuracy.verdict import inside
from accuracy.verdict.evidence import INDEPENDENT, Evidence, times_single_device
from accuracy.verdict.floor import LEVEL
from accuracy.verdict.label import EXCESS_ROUNDING, LOGIC, PRECISION_FLOOR, Finding
from accuracy.verdict.rows import Rows, largest, present, typical
from accuracy.verdict.rule import factor

BY_AUTOGRAD = ("flex_attention", "torch_math")
GRADIENTS = ("dq", "dk", "dv")
OF_OUT = ("dq", "dk")  # what delta, and so the rounding of out, goes into
EXACT = "float64"  # the reference's own dtype: a ratio of two errors of its size says nothing
NOTHING_JOINED, ORTHOGONAL, WALK = 1.2, 1.1, 1.5
LARGEST, ONE_RANK = 5.0, 3.0
COHERENT = 3.0
DEVIATIONS = 5.0
FOREIGN_SHORT, FOREIGN = 4.0, 8.0
BLOCK, FEW_BLOCKS = 64, 32  # keys of a block; blocks whose sum in 16 bits is as far off as `FOREIGN_SHORT` allows
ONE_WAY = 2.0  # four operands that lose digits all one way are 4 times as far off as one, which is twice as in squares


def excess(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    if evidence.effective == EXACT:
        return None
    fact = None
    for name, rows, ranks in evidence.by_inputs:
        cancelled = cancellation(evidence, name, rows)
        if np.isnan(cancelled).any() or inside.scores(evidence, name):
            continue
        least = least_of(evidence, rows)
        beyond = math.exp(DEVIATIONS * math.sqrt(np.sum(scatter(evidence, rows) ** 2)) / len(rows))
        ratio = typical(rows["error_rel"] / least)
        limit = typical(explained(evidence, rows, cancelled) / least) * _margin(evidence, len(rows), beyond)
        looser = _looser(evidence, rows, limit / beyond)
        limit *= looser
        walk = max(1.0, _kept_in_16_bits(evidence, least) / limit)
        within, limit, looser = limit, limit * walk, looser * walk
        numbers: dict[str, float | str] = {"x_single_device": ratio, "limit": limit, "inputs": name}
        if len(evidence.rungs) == 1 and ratio > max(limit, COHERENT * (1 + evidence.merges)):
            return Finding(LOGIC, "coherent", numbers | {"roundings": float(evidence.merges + 1)})
        if ratio > limit:
            return Finding(EXCESS_ROUNDING, "excess", numbers | {"seeds": float(len(rows))})
        if finding := _outlier(evidence, name, rows, ranks, looser, numbers):
            return finding
        if ratio > within:
            fact = fact or Finding(PRECISION_FLOOR, "kept_sum", numbers | {inside.MARK: inside.LONG_SUM})
    return fact


def cancellation(evidence: Evidence, inputs: str, rows: Rows) -> np.ndarray:
    """How many times larger than their sum the partials may be in each row, all together; NaN where it is unknown."""
    short = evidence.is_short
    of_scores = short and inputs != INDEPENDENT and inside.is_foreign(evidence)
    if of_scores and np.isnan(condition_of_scores(evidence, rows)) and evidence.tensor != "lse":
        return np.full(len(rows), np.nan)
    if evidence.tensor == "lse" or (evidence.merges == 0 and short):
        return np.ones(len(rows))
    if evidence.quantised and inputs != INDEPENDENT:
        return np.full(len(rows), np.nan)
    if inputs == INDEPENDENT:
        terms_rounded = short and evidence.key["kernel"] in BY_AUTOGRAD and evidence.tensor in GRADIENTS
        return rows["condition_rounding"] if terms_rounded else np.ones(len(rows))
    return np.fmax(rows["condition_sum"], rows["condition_rounding"])


def least_of(evidence: Evidence, rows: Rows) -> np.ndarray:
    """Relative error of each row that single device has, but for luck: at least one rounding."""
    least = np.fmax(rows["single_device_rel"] * evidence.units(evidence.dtype), rows["floor_rel"])
    return np.maximum(present(least), max(REFERENCE_ERROR, LEVEL * evidence.unit_roundoff))


def explained(evidence: Evidence, rows: Rows, cancelled: np.ndarray) -> np.ndarray:
    """Relative error of each row that the schedule's roundings explain, without margin."""
    merges, least = evidence.merges, least_of(evidence, rows)
    one = LEVEL * evidence.unit_roundoff
    if evidence.tensor == "lse" or not evidence.is_short:
        lse = present(rows["lse_rms"]) if evidence.tensor != "lse" else 0.0
        lse = lse * math.sqrt(float(evidence.key["head_dim"]) + 2)
        walk = np.sqrt(1 + 2 * merges * cancelled**2)
        return walk * np.maximum(least, one * np.hypot(1, lse) * cancelled)
    if merges == 0:
        return least
    once_more = np.maximum(rows["floor_rel"], one) * cancelled
    return np.hypot(least, np.maximum(once_more, least) if evidence.tensor in OF_OUT else once_more)


def _margin(evidence: Evidence, seeds: int, beyond: float) -> float:
    """Above what is explained. beyond: what scatter explains."""
    if evidence.tensor == "lse" or not evidence.is_short:
        return WALK * beyond
    if evidence.merges == 0:
        return max(NOTHING_JOINED, ORTHOGONAL * beyond)
    return max(ORTHOGONAL + 0.1 / math.sqrt(seeds), ORTHOGONAL * beyond)


def scatter(evidence: Evidence, rows: Rows) -> np.ndarray:
    """Standard deviation of the logarithm of each row's ratio to single device."""
    count, width = evidence.counts(rows)
    variance = 2 / count
    for rms, top in (
        (rows["error_rms"], rows["error_max"]),
        (rows["single_device_rel"] * rows["reference_rms"], rows["single_device_max"]),
    ):
        share = np.minimum(np.fmax((top / rms) ** 2 / (count * width), 0.0), 1.0)
        variance = variance + share**2
    return np.sqrt(variance) / 2


def _looser(evidence: Evidence, rows: Rows, limit: float) -> float:
    """How many times our kernels' limit is allowed: more for a user's function, and in 32 bits for a published package,
    whose blocks may be its own."""
    looser = inside.is_foreign(evidence) if evidence.is_short else inside.is_function(evidence)
    if not looser:
        return 1.0
    if evidence.tensor == "lse" or not evidence.is_short:
        cut = factor.by_sums_cut_off(evidence) if factor.are_sums_cut_off(evidence, rows) else 0.0
        return max(1.0, FOREIGN / limit, cut / typical(least_of(evidence, rows)) / limit)
    same = evidence.on_one_rank.where(evidence.on_one_rank["inputs"] == rows["inputs"][0])
    if evidence.merges and len(same) and (own := typical(times_single_device(same))):
        return max(1.0, own)  # its own ratio on one rank
    made = evidence.unit_roundoff * condition_of_scores(evidence, rows)  # by the rounding of scores to 16 bits
    least = max(typical(rows["single_device_rel"]), typical(rows["floor_rel"]))
    of_scores = made / least if made > least else 1.0
    if evidence.has_small_scores(rows["inputs"][0]):
        spread = evidence.spread_of_scores("")
        of_scores = max(1.0, math.sqrt((spread**2 + spread**4) / 2))
    one_way = ONE_WAY if evidence.effective == "tf32_cut" else 1.0
    return max(1.0, FOREIGN_SHORT * one_way * of_scores * _of_small_weights(evidence) / limit)


def _kept_in_16_bits(evidence: Evidence, least: np.ndarray) -> float:
    """How many times single device's error a long sum may have that a user's function keeps in 16 bits."""
    if not evidence.is_short or evidence.tensor not in ("out", "delta", *GRADIENTS) or not inside.is_foreign(evidence):
        return 0.0
    sums = (evidence.tensor, "out") if evidence.tensor in OF_OUT else (evidence.tensor,)
    further = max(inside.terms(evidence.key, each) for each in sums) / BLOCK - FEW_BLOCKS
    if further <= 0:
        return 0.0
    one = LEVEL * evidence.unit_roundoff / typical(least)
    walk = WALK * one * math.sqrt(further / 2)
    alike = one / 2 * math.sqrt(float(evidence.key["seqlen"]) / math.e) if evidence.tensor in OF_OUT else 0.0
    return math.hypot(FOREIGN_SHORT, walk, alike)


def _of_small_weights(evidence: Evidence) -> float:
    """How many times as far weights of about one over the number of keys are off where the format has no digits left
    for them: float16's smallest step is 2^-24."""
    form = form_of(evidence.dtype)
    step = 2.0 ** (form.min_exponent - form.precision + 1)
    return math.hypot(1.0, step / math.sqrt(12) * float(evidence.key["seqlen"]) / (LEVEL * form.unit_roundoff))


def condition_of_scores(evidence: Evidence, rows: Rows) -> float:
    """How many times the relative error of scores a tensor inherits; NaN where it was not recorded.

    That of out is the softmax's condition number. dq and dk are made of the weights but the largest, each of which has
    the whole error of its score: it is the scores' standard deviation, where inputs say their own.
    """
    condition = typical(rows["condition_softmax"])
    spread = evidence.spread_of_scores(str(rows["inputs_options"][0])) if len(rows) else math.nan
    return max(condition, spread) if evidence.tensor in OF_OUT else condition


def _outlier(
    evidence: Evidence, name: str, rows: Rows, ranks: Rows, looser: float, numbers: dict[str, float | str]
) -> Finding | None:
    """A single seed or rank far beyond the limit of all ranks and seeds together."""
    every = rows.joined(ranks)
    cancelled = cancellation(evidence, name, every)
    least, beyond = least_of(evidence, every), np.exp(DEVIATIONS * scatter(evidence, every))
    margin = _margin(evidence, 1, 1.0)
    allowed = np.maximum(ONE_RANK * least, 2 * margin * explained(evidence, every, cancelled)) * beyond * looser
    few = len(rows)
    zero = rows["reference_rms"] == 0  # then errors are relative to the natural size (`metrics.norms`)
    natural = np.where(zero & (rows["error_rel"] > 0), rows["error_rms"] / rows["error_rel"], rows["reference_rms"])
    size = np.maximum(rows["single_device_max"], least[:few] * natural)
    elements = rows["error_max"] / size / np.maximum(1.0, allowed[:few] / (ONE_RANK * least[:few]))
    if largest(elements) > LARGEST and not (
        evidence.wired or evidence.in_parts
    ):  # in 8 bits the largest element has the largest error
        found = {"x_single_device_max": largest(rows["error_max"] / size), "allowed": LARGEST}
        return Finding(EXCESS_ROUNDING, "element", numbers | found)
    times = (every["error_rel"] / allowed)[few:]
    if largest(times) > 1:
        worst = few + int(np.nanargmax(times))
        ratio, limit = (float(values[worst] / least[worst]) for values in (every["error_rel"], allowed))
        found = {"x_single_device_rank": ratio, "rank": float(every["rank"][worst]), "allowed": limit}
        return Finding(EXCESS_ROUNDING, "rank", numbers | found)
    return None
