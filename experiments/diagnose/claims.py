"""What a healthy variant's diagnosis shows."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict.label import NOT_MEASURED, ROUNDING
from accuracy.verdict.verdict import verdicts


def claims(results: pd.DataFrame) -> list[Claim]:
    judged = verdicts(results)
    judged = judged[judged["label"] != NOT_MEASURED]
    statement = "Every tensor merely rounds, in every dtype and at every world size."
    if judged.empty:
        return [Claim(statement, None, "nothing was measured")]
    wrong = judged[judged["label"] != ROUNDING]
    evidence = f"{len(judged) - len(wrong)} of {len(judged)} verdicts are rounding"
    return [Claim(statement, wrong.empty, evidence)]
