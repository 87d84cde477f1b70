"""What a healthy variant's diagnosis shows."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict import verdict
from accuracy.verdict.label import NOT_MEASURED, ROUNDING


def claims(results: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> list[Claim]:
    judged = verdict.verdicts(results) if verdicts is None else verdicts
    judged = judged[judged["label"] != NOT_MEASURED]
    statement = "Every tensor merely rounds, in every dtype and at every world size."
    if judged.empty:
        return [Claim(statement, None, "nothing was measured")]
    wrong = judged[judged["label"] != ROUNDING]
    evidence = f"{len(judged) - len(wrong)} of {len(judged)} verdicts are rounding"
    return [Claim(statement, wrong.empty, evidence)]
