"""Rule 2: exact-answer probes and a changed future. What is counted cannot be rounded away.

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

from accuracy.core.dtype import FORMATS, rounding_band
from accuracy.core.masks import keys_seen
from accuracy.core.probes import PROBES
from accuracy.results.table import ALL_RANKS
from accuracy.verdict import inside
from accuracy.verdict.evidence import TIMES_QUANTISED, Evidence
from accuracy.verdict.floor import LEVEL, WITHIN
from accuracy.verdict.label import LOGIC, Finding
from accuracy.verdict.rows import Rows, largest, mean

HALF_A_KEY = 0.5


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    leaks = largest(_steady(evidence.reruns)["future_differs"])
    if leaks > 0 and not evidence.quantised and not _merely_rounds(evidence):
        count = int(leaks)
        return Finding(LOGIC, f"{count} values of earlier rows change with later tokens", {"future_differs": count})
    for (name,), rows in evidence.probes.by("inputs").items():
        if evidence.tensor in PROBES[name] and (finding := _probe(evidence, name, rows)):
            return finding
    return None


def _merely_rounds(evidence: Evidence) -> bool:
    """Whether a user's function has, in the cases with another future, no error that is more than rounding."""
    rows = evidence.reruns.where(~np.isnan(evidence.reruns["future_differs"]))
    bands = [rounding_band(evidence.tensor, dtype) for dtype in rows["dtype"]]
    return inside.is_foreign(evidence) and bool((rows["error_rel"] <= bands).all())


def _steady(reruns: Rows) -> Rows:
    """Of cases that repeat bit for bit on every rank: of others any rerun differs, and on a rank where two happened to
    agree the third may not."""
    restless = reruns["case_id"][reruns["repeats_differ"] > 0]
    if not len(restless):
        return reruns
    return reruns.where(~np.isin(reruns["case_id"].astype(str), restless.astype(str)))


def _probe(evidence: Evidence, name: str, rows: Rows) -> Finding | None:
    if evidence.tensor == "lse":
        return _count_keys(evidence, rows)
    band = max(rounding_band(evidence.tensor, evidence.dtype), TIMES_QUANTISED * evidence.quantised)
    if name == "one_gradient":
        size = mean(evidence.whole.where(evidence.whole["inputs"] == "gaussian")["reference_rms"])
        off = largest(rows["error_rms"])
        limit = band * math.sqrt(float(evidence.key["head_dim"])) * size
        if not off > limit or _like_rounding(off / size / math.sqrt(float(evidence.key["head_dim"])), evidence):
            return None
        return Finding(LOGIC, f"{evidence.tensor} should be 0 with V = dout = 1 and is {off:.2g}", {"probe": off})
    off = largest(rows["error_rel"])
    if off <= band or _like_rounding(off, evidence):
        return None
    exact = {"one_value": "1 with V = 1", "zero_query": "the mean of the values with Q = 0"}
    answer = exact.get(name, "the mean of the visible positions' codes with Q = 0")
    return Finding(LOGIC, f"out should be {answer} and is off by {off:.2g} of it", {"probe": off})


def _count_keys(evidence: Evidence, rows: Rows) -> Finding | None:
    worst = np.argsort(rows["error_max"])[-1]
    off, token = float(rows["error_max"][worst]), int(rows["worst_token"][worst])
    short = not largest(rows["significand_bits"]) > 11  # else it was not kept in 16 bits
    keys_off = off * float(evidence.key["seqlen"])
    if keys_off <= HALF_A_KEY or (short and _like_rounding(float(rows["error_rel"][worst]), evidence)):
        return None
    side = rows["error_bias"][rows["rank"] == ALL_RANKS][0]
    length, queries = int(evidence.key["seqlen"]), int(evidence.key["seqlen_q"])
    seen = keys_seen(str(evidence.key["mask"]), token, queries, length)
    counted = seen * float(np.exp(math.copysign(off, side)))
    return Finding(
        LOGIC,
        f"with Q = 0 lse counts keys: token {token} sees {seen} and counts {counted:.4g}",
        {"probe": off, "keys_seen": seen, "keys_counted": counted},
    )


def _like_rounding(level: float, evidence: Evidence) -> bool:
    """Whether a coarser format's rounding would leave such an error; equal weights round alike, so it may be small."""
    finer = FORMATS[evidence.effective].precision
    coarser = [form for form in FORMATS.values() if form.precision < finer]
    return any(LEVEL * form.unit_roundoff / 16 <= level <= WITHIN * form.unit_roundoff for form in coarser)
