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
SETTINGS = ["precision", "options", "kernel", "kernel_options"]
PROBLEM = ["dtype", "inputs", "inputs_options", "mask", "seqlen", "heads", "heads_kv", "head_dim"]


def contradictions(title: str, measured: pd.DataFrame) -> list[str]:
    rows = measured[(measured["rank"] == -1) & (measured["variant"] != "single_device")]
    rows = rows[~rows["inputs"].isin(PROBES)]
    rows = rows[rows["dtype"] != "float64"] if "float64 apart" in title else rows
    finite = rows[np.isfinite(rows["x_single_device"])]
    found = []
    wrong = (finite["x_single_device"] > NO_ROUNDING).any() or (measured["nonfinite"] > 0).any()
    if "No bug found" in title and wrong:
        found.append("a bug is in the table")
    if bound := BOUND.search(title):
        named = {tensor for tensor, *_ in ALSO.findall(title)}
        held = set(finite["tensor"]) if bound[1].startswith("every") else {*finite["tensor"]} - (named - {*JUDGED})
        means = _means(finite, ["variant", "world_size", "tensor"]).groupby("tensor").max()
        over = means[means.index.isin(held) & (means > _number(bound[2]) * LAST_DIGIT)]
        found += [f"{name} has {value:.3g} times, not {bound[2]}" for name, value in over.items()]
    said = [(dtype, *words) for dtype, *words in FURTHEST.findall(title)]
    said += [("", *words) for words in ALSO.findall(title)]
    name = re.sub(r"^Partial run \(.*?\)\. ", "", title).partition(": ")[0]
    said += [(dtype, tensor, name, value, size) for tensor, value, dtype, size in ACCUSED.findall(title)]
    return found + [" ".join(words) for words in said if not _is_there(rows, *words)]


def _is_there(rows: pd.DataFrame, dtype: str, tensor: str, name: str, value: str, size: str) -> bool:
    """Whether a variant of that name has such a number there."""
    variant, _, detail = name.partition(" ")
    mine = rows[(rows["variant"] == variant) & (rows["tensor"] == tensor) & (rows["world_size"] == int(_number(size)))]
    mine = mine[mine["dtype"] == dtype] if dtype else mine
    settings = [name for name in SETTINGS if mine[name].nunique() > 1]
    wanted = [*detail.strip("()").split(", "), ""]
    mine = mine[mine[settings].isin(wanted).all(axis=1)] if detail and settings else mine
    want = _number(value)
    near = want * (LAST_DIGIT if want < 1000 else 1.06)  # two digits from a thousand on
    return bool(_means(mine, []).between(want * want / near, near).any())


def _means(rows: pd.DataFrame, keys: list[str]) -> "pd.Series[float]":
    """Geometric means over the seeds."""
    times = rows.groupby([*keys, *SETTINGS, *PROBLEM], dropna=False)["x_single_device"]
    return times.apply(lambda values: float(np.exp(np.log(values).mean())))


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))
