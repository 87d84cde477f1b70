"""What tolerances claims of healthy attention and its certain bounds, checked against the table."""

import pandas as pd

from accuracy.results.claim import Claim


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["beyond"].notna()]
    statement = "No element of a healthy schedule on a healthy kernel is beyond its certain bound, on any inputs."
    if rows.empty:
        return [Claim(statement, None, "nothing was counted: reruns.explain=true does")]
    combinations = rows.groupby(["inputs", "dtype", "kernel"], dropna=False).ngroups
    found = int(rows["beyond"].sum())
    return [
        Claim(statement, found == 0, f"{found} elements beyond in {len(rows):,} tensors of {combinations} settings")
    ]
