"""What batch_invariance claims of its results: where bits change is in `boundaries/`, which its README quotes."""

import pandas as pd

from accuracy.results.claim import Claim, no_failure


def claims(results: pd.DataFrame) -> list[Claim]:
    return [no_failure(results)]
