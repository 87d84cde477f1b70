"""What did a variant's cases not try? Said beside every verdict, which holds for what was measured."""

from collections.abc import Iterable

import pandas as pd

from accuracy.core import fields
from accuracy.core.errors import NOT_SHARED
from accuracy.core.number import count
from accuracy.results.table import FAILED, OK, TOO_FEW_RANKS
from accuracy.verdict.label import NOT_MEASURED


def untried(results: pd.DataFrame) -> str:
    """One clause of what no measured case of a variant has; results: its rows."""
    rows = results[(results["status"] == OK) & results["mask"].notna()]
    if rows.empty:
        return ""
    masks, sizes = set(map(str, rows["mask"])), rows["world_size"]
    missing = {
        "a causal mask": not any(mask.startswith("causal") for mask in masks),
        "a full mask": not any(mask.startswith("full") for mask in masks),
        "windows": not any("window=" in mask for mask in masks),
        "packed documents": not any("documents=" in mask for mask in masks),
        "a softcap": not (rows["softcap"] > 0).any(),
        "dropout": not any("dropout=" in mask for mask in masks),
        "lengths that ranks cannot share": (sizes > 1).any() and not any("padding=" in mask for mask in masks),
        "fewer queries than keys": not (rows.get("seqlen_q", rows["seqlen"]) != rows["seqlen"]).any(),
        "grouped heads": not (rows["heads"] != rows["heads_kv"]).any(),
        "batches": not (rows["batch"] > 1).any(),
        "odd numbers of ranks": (sizes > 1).any() and not ((sizes > 1) & (sizes % 2 == 1)).any(),
        "a gradient of lse": (rows["tensor"] == "lse").any() and rows["options"].map(fields.is_foreign).any(),
        "runs again": not rows.get("repeats_differ", rows["seqlen"] * float("nan")).notna().any(),
    }
    words = [word for word, absent in missing.items() if absent]
    most = f"more than {count(int(rows['seqlen'].max()), 'token')} or {count(int(rows['world_size'].max()), 'rank')}"
    return f"Not tried: {', '.join([*words, most])}."


def missing_sizes(results: pd.DataFrame) -> dict[int, str]:
    """Return the numbers of ranks at which a variant was to be measured and has no number, and why.

    A function of one device has one rank, however many were planned. What a variant of this package, or an adapter of
    another's, says that it cannot do is no gap either, unless it is for lack of ranks.
    """
    found = {}
    for size, rows in results[results["world_size"] > 1].groupby("world_size"):
        reasons = rows["reason"].fillna("").astype(str)
        gaps = (rows["status"] == FAILED) | reasons.str.startswith(TOO_FEW_RANKS)
        gaps |= rows["options"].map(fields.is_foreign) & ~reasons.str.contains(NOT_SHARED, regex=False)
        if not (rows["status"] == OK).any() and gaps.any():
            found[int(size)] = str(reasons[gaps].iloc[0])  # type: ignore[arg-type]
    return found


def not_on(sizes: Iterable[int]) -> str:
    """Return the first words of a verdict on a variant that has no number at these sizes."""
    return f"Not on {' and '.join(map(str, sizes))} ranks"


def on_one_rank_only(results: pd.DataFrame) -> bool:
    """Return whether a variant was to be measured on several ranks and was on one alone."""
    several = results[results["world_size"] > 1]
    return bool(missing_sizes(results)) and not (several["status"] == OK).any()


def failures(results: pd.DataFrame) -> str:
    """How many of the cases have no numbers because they failed."""
    cases = results[results["status"].isin((OK, FAILED))].groupby("case_id")["status"].first()
    failed = int((cases == FAILED).sum())
    return f" {failed} of {count(len(cases), 'case')} failed." if failed else ""


def raised(results: pd.DataFrame) -> list[str]:
    """The kinds of failures in dtypes that were measured otherwise: how many cases, and the first one's shape."""
    measured = set(results.loc[results["status"] == OK, "dtype"])
    failed = results[(results["status"] == FAILED) & results["tensor"].isna() & results["dtype"].isin(measured)]
    if failed.empty:
        return []
    kinds = failed.groupby(failed["reason"].astype(str).str.replace(r"\d+", "N", regex=True), sort=False)
    names = ("seqlen", "batch", "heads", "heads_kv", "head_dim", "mask", "world_size")
    said = []
    for _, rows in kinds:
        first = rows.iloc[0]
        where = ", ".join(f"{name}={first[name]}" for name in names)
        said.append(f"Not measured in {count(len(rows), 'case')}, the first with {where}: {first['reason']}.")
    return said


def silent(verdicts: pd.DataFrame) -> list[str]:
    """The dtypes in which nothing was measured, and why; the tensors that the variant returns in no dtype."""
    without = {
        str(dtype): str(each["sentence"].iloc[0])
        for dtype, each in verdicts.groupby("dtype", sort=False)
        if (each["label"] == NOT_MEASURED).all()
    }
    same = {reason: [dtype for dtype in without if without[dtype] == reason] for reason in without.values()}
    said = [f"Not measured in {', '.join(dtypes)}: {reason}." for reason, dtypes in same.items()]
    given = set(verdicts.loc[verdicts["label"] != NOT_MEASURED, "tensor"])
    missing = [name for name in ("lse", "dq", "dk", "dv") if name not in given]
    return [*said, f"Not returned, so not judged: {', '.join(missing)}."] if missing and given else said
