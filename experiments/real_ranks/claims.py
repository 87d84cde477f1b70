"""What real_ranks claims: processes give the numbers of the simulated ranks, one by one."""

import pandas as pd

from accuracy.core import fields
from accuracy.results.claim import Claim, no_failure
from accuracy.results.table import METRICS

KEYS = [*fields.names_but(fields.WORLD), "tensor", "rank"]


def claims(results: pd.DataFrame) -> list[Claim]:
    both = _side_by_side(results[(results["status"] == "ok") & results["tensor"].notna()])
    return [_equal(both), no_failure(results)]


def _side_by_side(rows: pd.DataFrame) -> pd.DataFrame:
    metrics = [name for name in METRICS if rows[name].dtype.kind == "f"]
    simulated, real = (rows[rows["world"] == world] for world in ("simulated", "processes"))
    both = simulated.merge(real[[*KEYS, *metrics]], on=KEYS, suffixes=("", "_real"))
    same = [
        (both[name] == both[f"{name}_real"]) | (both[name].isna() & both[f"{name}_real"].isna()) for name in metrics
    ]
    return both.assign(same=pd.concat(same, axis=1).all(axis=1) if len(both) else pd.Series(dtype=bool))


def _equal(both: pd.DataFrame) -> Claim:
    statement = "Real ranks give every number of the simulated ones, by rank and tensor, in every digit."
    if both.empty:
        return Claim(statement, None, "not measured in both worlds")
    differing = both[~both["same"]]
    sizes = ", ".join(str(size) for size in sorted(both["world_size"].unique()))
    evidence = f"{len(both) - len(differing):,} of {len(both):,} rows equal, at {sizes} ranks"
    if len(differing):
        row = differing.iloc[0]
        evidence += f"; first that is not: {row['tensor']} of {row['variant']}, {row['dtype']}, rank {row['rank']}"
        evidence += f" of {row['world_size']}"
    return Claim(statement, differing.empty, evidence)
