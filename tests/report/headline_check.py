"""Does a headline say what its table says? A checker that shares no code with what writes headlines.

In: the sentence and the measured rows. Out: complaints; none is fine.
"""

import re

import numpy as np
import pandas as pd

JUDGED = ("out", "dq", "dk", "dv")
NO_ROUNDING = 30.0  # times single device's error: no schedule's roundings add up to it
LAST_DIGIT = 1.006  # a number of three digits is within half a unit of the last of them
PROBES = ("zero_query", "one_value", "one_hot", "index_value", "one_gradient", "sum_loss")
BOUND = re.compile(r"(every variant stays|of every variant stay) within ([\d.,e]+) times")
FURTHEST = re.compile(r"Furthest in (\w+) is (\w+) of (.+?), ([\d.,e]+) times at (\d+) rank")
ALSO = re.compile(r"; (\w+) of (.+?) has ([\d.,e]+) times at (\d+) rank")
ACCUSED = re.compile(r"(\w+) has ([\d.,e]+) times single device's error in (\w+) at ([\d,]+) rank")


def contradictions(title: str, measured: pd.DataFrame) -> list[str]:
    rows = measured[(measured["rank"] == -1) & (measured["variant"] != "single_device")]
    rows = rows[~rows["inputs"].isin(PROBES)]
    rows = rows[rows["dtype"] != "float64"] if "float64 apart" in title else rows
    found = []
    if "No bug found" in title:
        ratios = rows.loc[np.isfinite(rows["x_single_device"]), "x_single_device"]
        if (ratios > NO_ROUNDING).any() or (measured["nonfinite"] > 0).any():
            found.append("a bug is in the table")
    if bound := BOUND.search(title):
        found += _beyond(rows, _number(bound[2]), bound[1].startswith("every"), title)
    for dtype, tensor, name, value, size in FURTHEST.findall(title):
        found += _absent(rows[rows["dtype"] == dtype], tensor, name, value, size)
    for tensor, name, value, size in ALSO.findall(title):
        found += _absent(rows, tensor, name, value, size)
    for tensor, value, dtype, size in ACCUSED.findall(title):
        name = re.sub(r"^Partial run \(.*?\)\. ", "", title).partition(": ")[0]
        found += _absent(rows[rows["dtype"] == dtype], tensor, name, value, size)
    return found


def _beyond(rows: pd.DataFrame, bound: float, every: bool, title: str) -> list[str]:
    """Tensors above the bound that the sentence neither leaves out nor names."""
    keys = ["variant", "precision", "kernel", "dtype", "world_size", "inputs", "mask", "seqlen", "tensor"]
    finite = rows[np.isfinite(rows["x_single_device"])]
    means = finite.groupby([*keys, "heads", "head_dim"])["x_single_device"].apply(_mean).groupby("tensor").max()
    named = {tensor for tensor, *_ in ALSO.findall(title)}
    held = [name for name in means.index if every or name in JUDGED]
    over = [name for name in held if means[name] > bound * LAST_DIGIT]
    over += [
        name for name in means.index if name not in held and name not in named and means[name] > bound * LAST_DIGIT
    ]
    return [f"{name} has {means[name]:.3g} times, not {bound}" for name in over]


def _absent(rows: pd.DataFrame, tensor: str, name: str, value: str, size: str) -> list[str]:
    """Nothing, if a variant of that name has such a number there."""
    variant, _, detail = name.partition(" ")
    mine = rows[(rows["variant"] == variant) & (rows["tensor"] == tensor) & (rows["world_size"] == int(_number(size)))]
    settings = [name for name in ("precision", "options", "kernel", "kernel_options") if mine[name].nunique() > 1]
    wanted = detail.strip("()").split(", ")
    mine = mine[mine[settings].isin([*wanted, ""]).all(axis=1)] if detail and settings else mine
    keys = [
        "precision",
        "options",
        "kernel",
        "kernel_options",
        "dtype",
        "inputs",
        "inputs_options",
        "mask",
        "seqlen",
        "heads",
        "heads_kv",
        "head_dim",
    ]
    means = mine.groupby(keys, dropna=False)["x_single_device"].apply(_mean)
    want = _number(value)
    near = want * (1.006 if want < 1000 else 1.06)  # two digits from a thousand on
    same = means.between(want * want / near, near)
    return [] if same.any() else [f"no {tensor} of {name} has {value} times at {size} ranks"]


def _mean(values: "pd.Series[float]") -> float:
    return float(np.exp(np.log(values).mean()))


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))
