"""What fp8_ring claims about merges on a kernel whose operands have 8 bits, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

TENSORS = ("out", "dq", "dk", "dv")


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["error_rel"].notna() & results["tensor"].isin(TENSORS)]
    rows = rows.assign(policy=rows["kernel_options"].map(pairs_of).str["policy"])
    ring, splits = rows[(rows["variant"] == "ring") & as_published(rows)], rows[rows["variant"] == "split_kv"]
    return [
        _below("A ring adds at most 5% with fp8_tensor, up to 256 ranks.", ring[ring["policy"] == "fp8_tensor"], 1.05),
        _below("A ring adds at most 10% with sage, up to 256 ranks.", ring[ring["policy"] == "sage"], 1.1),
        _below("256 splits add at most 5% to out with fp8_tensor.", splits[splits["policy"] == "fp8_tensor"], 1.05),
        _below("256 splits add at most 10% to out with sage.", splits[splits["policy"] == "sage"], 1.1),
    ]  # fmt: skip


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says."""
    rows = results[(results["rank"] == -1) & results["error_rel"].notna() & results["tensor"].isin(TENSORS)]
    ring = rows[(rows["variant"] == "ring") & as_published(rows)].assign(options=rows["kernel_options"])
    most = ring["world_size"].max()
    measured = Claim("Rings of 256 ranks are measured.", bool(most == 256), f"{most}")
    return [_below("A ring has at most 1.05 times single device's error.", ring, 1.05), measured]


def as_published(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Wires as the ring has them, not those of 8 bits."""
    return rows["precision"].fillna("") == ""


def _below(statement: str, rows: pd.DataFrame, bound: float) -> Claim:
    """Geometric means over the seeds are close to plain ones here: ratios are near 1."""
    if rows.empty:
        return Claim(statement, None, "not measured")
    mean = rows.groupby(["tensor", "world_size", "options"], dropna=False)["x_single_device"].mean()
    tensors = mean.groupby("tensor").agg(["min", "max"])
    said = ", ".join(
        f"{name} {low:.3f} to {high:.3f}" for name, (low, high) in zip(tensors.index, tensors.to_numpy(), strict=True)
    )
    return Claim(statement, bool(mean.max() <= bound), f"times single device's error: {said}")
