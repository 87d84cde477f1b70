"""What bpt_backward claims: the issue's shape over the ranks, the label, the cause, and that the remedy remedies."""

import numpy as np
import pandas as pd

from accuracy.results import table
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.label import LOGIC, NOT_MEASURED, ROUNDING
from accuracy.verdict.verdict import verdicts
from experiments.claim import Claim

ISSUE_DQ = (7.5e-5, 1.24e-2, 1.95e-2, 2.53e-2, 3.01e-2, 3.44e-2, 3.82e-2, 4.17e-2)  # mean diff on ranks 0 to 7
ISSUE_TOKENS = 16_384  # causal Gaussian rows have a mean lse of 9.204 at that length, as the issue printed
HEALTHY, STALE = "bpt_ring", "bpt_ring_stale"


def claims(results: pd.DataFrame) -> list[Claim]:
    judged = verdicts(results)
    judged = judged[judged["label"] != NOT_MEASURED]
    shapes = [_shape(results), _equal(results), *_ends(results)]
    return [*shapes, _named(judged, results), _forward(judged), _cured(judged)]


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    judged = verdicts(results)
    judged = judged[judged["label"] != NOT_MEASURED]
    return [_equal(results), *_ends(results), _named(judged, results), _cured(judged)]


def _profile(results: pd.DataFrame, tensor: str) -> pd.Series:
    """Mean diff by rank of the stale ring in float16 at the largest problem, over the seeds."""
    rows = results[(results["variant"] == STALE) & (results["tensor"] == tensor) & (results["dtype"] == "float16")]
    rows = rows[(rows["seqlen"] == rows["seqlen"].max()) & (rows["rank"] >= 0) & (rows["world_size"] == 8)]
    return rows.groupby("rank")["diff_mean"].mean()


def _shape(results: pd.DataFrame) -> Claim:
    statement = "After one common factor, dq's mean diff on ranks 1 to 7 is within 5% of what the issue printed."
    found = _profile(results, "dq")
    if len(found) < 8:
        return Claim(statement, None, "not measured on 8 ranks")
    ours, printed = found.to_numpy()[1:], np.array(ISSUE_DQ[1:])
    factor = float(np.exp(np.log(ours / printed).mean()))
    off = np.abs(ours / printed / factor - 1)
    beside = ", ".join(f"{a:.3g} for {b:.3g}" for a, b in zip(ours, printed, strict=True))
    return Claim(statement, bool(off.max() < 0.05), f"factor {factor:.3g}, at most {off.max():.1%} off: {beside}")


def _equal(results: pd.DataFrame) -> Claim:
    statement = (
        f"(Added after the run.) At {ISSUE_TOKENS} tokens, which the issue's lse says, dq's mean diff on ranks 1 to 7 "
        "is within 1% of what it printed, without a factor."
    )
    found = _profile(results, "dq")
    if len(found) < 8 or results["seqlen"].max() != ISSUE_TOKENS:
        return Claim(statement, None, f"not measured on 8 ranks at {ISSUE_TOKENS} tokens")
    off = np.abs(found.to_numpy()[1:] / np.array(ISSUE_DQ[1:]) - 1)
    return Claim(statement, bool(off.max() < 0.01), f"at most {off.max():.2%} off")


def _ends(results: pd.DataFrame) -> list[Claim]:
    made = []
    for tensors, right, way in ((("dq",), 0, "rises"), (("dk", "dv"), 7, "falls")):
        statement = f"The mean diff of {' and '.join(tensors)} {way} with the rank; rank {right} is right."
        profiles = [_profile(results, tensor) for tensor in tensors]
        if any(len(profile) < 8 for profile in profiles):
            made.append(Claim(statement, None, "not measured on 8 ranks"))
            continue
        sign = 1 if way == "rises" else -1
        wrong = [profile.drop(right) for profile in profiles]
        holds = all((np.diff(sign * each) > 0).all() for each in wrong)
        with np.errstate(divide="ignore"):  # one rank's float16 may agree with single device's to the last bit
            least = min(
                float(np.divide(each.min(), profile[right])) for each, profile in zip(wrong, profiles, strict=True)
            )
        evidence = f"any other rank is at least {least:.3g} times as far off as rank {right}"
        made.append(Claim(statement, holds and least > 30, evidence))
    return made


def _named(judged: pd.DataFrame, results: pd.DataFrame) -> Claim:
    statement = "The verdict calls the gradients of the stale ring a bug."
    mine = judged[judged["variant"] == STALE]
    if mine.empty:
        return Claim(statement, None, "not measured")
    none = (schema.empty_table().to_pandas() for schema in (table.STEPS_SCHEMA, table.HYPOTHESES_SCHEMA))
    (said,) = diagnoses(mine, results[results["variant"] == STALE], *none)
    return Claim(statement, said.label == LOGIC, said.sentence)


def _forward(judged: pd.DataFrame) -> Claim:
    statement = "Its out and lse merely round."
    mine = judged[(judged["variant"] == STALE) & judged["tensor"].isin(("out", "lse"))]
    return Claim(statement, bool((mine["label"] == ROUNDING).all()) if len(mine) else None, f"{len(mine)} verdicts")


def _cured(judged: pd.DataFrame) -> Claim:
    statement = "The same ring without the buffer merely rounds in every tensor."
    mine = judged[judged["variant"] == HEALTHY]
    worst = mine.loc[mine["tensor"] != "lse", "x_single_device"].max() if len(mine) else float("nan")
    holds = bool((mine["label"] == ROUNDING).all()) if len(mine) else None
    return Claim(statement, holds, f"at most {worst:.2f} times single device's error")
