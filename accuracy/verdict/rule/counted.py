"""What is counted cannot be rounded away: runs that differ, values that no rounding makes, answers known exactly.

`differs_from_run_to_run` leads, since numbers of one run say nothing of the next; the harness itself repeats bit for
bit, so one differing element counts. But where unwritten memory, or a receive buffer too early, is read, `invalid`
names that. The size of the change tells what differs. Sums in another order stay within the rounding of the format: an
element's change is at most `rounding_band` of the tensor's size, a few ulps. What is larger is other data: a race. A
race that strikes one call in 200 is seen in 920 repeats with 1 - (1 - 1/200)^920 = 99%. They are of two ranks; where
more are asked for, repeats are fewer and the ranks' calls as many: 232 repeats of eight.

`invalid`, a single element is enough: non-finite where the reference is finite; a wrong shape or dtype; writing to
memory that is not the variant's; elements that turn non-finite when unwritten memory, memory around the inputs
(padding), or a receive buffer before its transfer has been waited for, is filled with NaN.

`probe`:
- Key counts (q = 0): lse is ln of the number of visible keys; an lse that is off by more than half a key in the whole
  sequence, 0.5 / S, has lost or gained one. (float32 holds ln S to 5e-7: good for S to 10^6.)
- Exact answers: beyond `rounding_band` of the dtype (8 u of 16-bit formats, 1000 u of others), unless the error is one
  that rounding to a coarser format leaves: then the ladder names that format.
- dq = dk = 0 (V = dout = 1): dP and delta are D each and cancel where Gaussian ones are sqrt(D); so what is left may
  be sqrt(D) bands of the Gaussian gradient.
- A future token changed: not one bit of an earlier row may change, in a case that repeats bit for bit. A scale of a
  tensor, a head or a block is of all its tokens, so a kernel that quantises is not asked. A user's function may take
  something off all scores that every key has a part in, as a smoothed k does, and rounds otherwise then: it is only
  asked where its error is beyond `rounding_band`, which the weight of a key that is seen too early makes.
"""

import math

import numpy as np

from accuracy.core.dtype import FORMATS, PROBES, form_of
from accuracy.core.masks import keys_seen
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from accuracy.verdict import inside
from accuracy.verdict.evidence import TIMES_QUANTISED, Evidence
from accuracy.verdict.floor import LEVEL, WITHIN
from accuracy.verdict.label import INVALID, LOGIC, NONDETERMINISTIC, Finding
from accuracy.verdict.rows import Rows, largest, mean, present

HALF_A_KEY = 0.5
WROTE = ("wrote to", "wrote next to")
WRONG_RESULT = "WrongResult: "  # in the reasons of failed cases, as the words above
_OTHER = "of tensors of other strides (heads before tokens)"
STRIDES = (_OTHER, f"of a second call, {_OTHER},")
"""One second call cannot tell strides from a race or from memory that was not written, so the call is named first."""


def differs_from_run_to_run(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    repeats = evidence.reruns.where(evidence.reruns["repeats_differ"] > 0)
    if not len(repeats) or any((evidence.reruns[name] > 0).any() for name in ("poisoned", "unwaited")):
        return None
    dtype, size = str(repeats["dtype"][0]), largest(repeats["repeats_size"])
    numbers: dict[str, float | str] = {"repeats_differ": float(repeats["repeats_differ"].max()), "in_dtype": dtype}
    if math.isnan(size):
        return Finding(NONDETERMINISTIC, "differs", numbers)
    race = size > evidence.band(dtype)
    ranks = sorted({int(rank) for rank in repeats["rank"] if rank != ALL_RANKS})
    numbers |= {"runs": float(repeats["repeats_runs"].max()), "ranks": ", ".join(map(str, ranks))}
    numbers |= {"repeats_size": size, "race": float(race)}
    if not race and inside.is_foreign(evidence):
        numbers |= {inside.MARK: inside.ORDER}
        return Finding(NONDETERMINISTIC, "other_order", numbers)
    return Finding(NONDETERMINISTIC, "race" if race else "other_order", numbers)


def invalid(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    for reason in evidence.failures:
        if not _concerns(evidence.tensor, reason):
            continue
        if wrote := next((reason[reason.index(mark) :] for mark in WROTE if mark in reason), ""):
            return Finding(INVALID, "wrote", {"wrote": wrote, "reason": reason})
        if WRONG_RESULT.strip() in reason:
            returned = reason.rpartition(WRONG_RESULT)[2].replace(*STRIDES)
            return Finding(INVALID, "returned", {"returned": returned, "reason": reason})
    unwaited, poisoned = (float(present(evidence.reruns[name]).max(initial=0.0)) for name in ("unwaited", "poisoned"))
    if unwaited:
        return Finding(INVALID, "unwaited", {"unwaited": unwaited})
    rows = evidence.all_ranks if (evidence.all_ranks["nonfinite"] > 0).any() else evidence.probes
    broken = rows.where(rows["nonfinite"] > 0)
    if len(broken):
        inputs = ", ".join(sorted(set(broken["inputs"])))
        count, seed = float(broken["nonfinite"][0]), float(broken["seed"][0])
        return Finding(INVALID, "nonfinite", {"nonfinite": count, "inputs": inputs, "seed": seed})
    return Finding(INVALID, "poisoned", {"poisoned": poisoned}) if poisoned else None


def _concerns(tensor: str, reason: str) -> bool:
    """A reason that begins with a tensor is about that one; another one is about all."""
    named = reason.rpartition(WRONG_RESULT)[2].partition(" ")[0]
    return named == tensor or named not in ALL_TENSORS


def probe(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    rows = evidence.reruns.where(~np.isnan(evidence.reruns["future_differs"]))
    own = rows.where(rows["dtype"] == evidence.dtype)
    rows = own if len(own) else rows  # of no finer dtype, where the case's own was asked
    leaks = largest(_repeating(rows, evidence.reruns)["future_differs"])
    bands = [evidence.band(dtype) for dtype in rows["dtype"]]
    merely_rounds = inside.is_foreign(evidence) and bool((rows["error_rel"] <= bands).all())
    if leaks > 0 and not evidence.quantised and not merely_rounds:
        return Finding(LOGIC, "future", {"future_differs": float(leaks)})
    for (name,), rows in evidence.probes.by("inputs").items():
        if evidence.tensor in PROBES[name] and (finding := _exact(evidence, name, rows)):
            return finding
    return None


def _repeating(rows: Rows, reruns: Rows) -> Rows:
    """Rows of cases that repeat bit for bit on every rank: in others any rerun differs, and on a rank where two
    happened to agree the third may not."""
    differing = {*reruns["case_id"][reruns["repeats_differ"] > 0]}
    return rows.where(np.array([case not in differing for case in rows["case_id"]], bool))


def _exact(evidence: Evidence, name: str, rows: Rows) -> Finding | None:
    if evidence.tensor == "lse":
        return _count_keys(evidence, rows)
    dtype = inside.FORMAT if inside.judges(evidence, evidence.dtype) else evidence.dtype
    band = max(evidence.band(dtype), TIMES_QUANTISED * evidence.quantised)
    size, off = 1.0, largest(rows["error_rel"])
    if name == "one_gradient":
        gaussian = evidence.all_ranks.where(evidence.all_ranks["inputs"] == "gaussian")
        off = largest(rows["error_rms"])
        size = math.sqrt(float(evidence.key["head_dim"])) * mean(gaussian["reference_rms"])
    wrong = off > band * size and not _like_rounding(off / size, evidence)
    return Finding(LOGIC, name, {"probe": off}) if wrong else None


def _count_keys(evidence: Evidence, rows: Rows) -> Finding | None:
    worst = np.argsort(rows["error_max"])[-1]
    off, token = float(rows["error_max"][worst]), int(rows["worst_token"][worst])
    short = not largest(rows["significand_bits"]) > 11  # else it was not stored in 16 bits
    length, queries = int(evidence.key["seqlen"]), int(evidence.key["seqlen_q"])
    if off * length <= HALF_A_KEY or (short and _like_rounding(float(rows["error_rel"][worst]), evidence)):
        return None
    side = rows["error_bias"][rows["rank"] == ALL_RANKS][0]
    seen = keys_seen(str(evidence.key["mask"]), token, queries, length)
    counted = seen * float(np.exp(math.copysign(off, side)))
    return Finding(LOGIC, "keys", {"probe": off, "token": float(token), "keys_seen": seen, "keys_counted": counted})


def _like_rounding(level: float, evidence: Evidence) -> bool:
    """Whether a coarser format's rounding would leave such an error; equal weights round alike, so it may be small."""
    finer = form_of(evidence.effective).precision
    coarser = [form for form in FORMATS.values() if form.precision < finer]
    return any(LEVEL * form.unit_roundoff / 16 <= level <= WITHIN * form.unit_roundoff for form in coarser)
