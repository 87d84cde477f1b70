"""Do a title and its numbers say what their table says? A checker that shares no code with what writes them.

In: the title, the tiles and the measured rows. Out: complaints; none is fine.
"""

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd

JUDGED = ("out", "dq", "dk", "dv")
NO_ROUNDING = 30.0  # times single device's error: no schedule's roundings add up to it
LAST_DIGIT = 1.006  # a number of three digits is within half a unit of the last of them
PROBES = ("zero_query", "one_value", "one_hot", "index_value", "one_gradient", "sum_loss")
ALIKE = 1.02  # of cells that seeds may exchange, any may be named
MOST_WORDS = 12
CELL = re.compile(r"(?:.*: )?(\w+) of (.+), (\w+), ([\d,]+) ranks?$")
SETTINGS = ["precision", "options", "kernel", "kernel_options"]
PROBLEM = ["dtype", "inputs", "inputs_options", "mask", "seqlen", "heads", "heads_kv", "head_dim"]


def contradictions(title: str, tiles: Iterable[tuple[str, str]], measured: pd.DataFrame) -> list[str]:
    rows = measured[(measured["rank"] == -1) & (measured["variant"] != "single_device")]
    rows = rows[~rows["inputs"].isin(PROBES)]
    rows = rows[rows["dtype"] != "float64"] if any("float64 apart" in label for _, label in tiles) else rows
    finite = rows[np.isfinite(rows["x_single_device"])]
    found = [] if 0 < len(title.split()) <= MOST_WORDS else [f"{len(title.split())} words"]
    wrong = (finite["x_single_device"] > NO_ROUNDING).any() or (measured["nonfinite"] > 0).any()
    if "No bug found" in title and wrong:
        found.append("a bug is in the table")
    said = [(*cell.groups(), value) for value, label in tiles if (cell := CELL.match(label))]
    if "No bug found" in title and said:
        means = _means(finite, ["variant", "world_size", "tensor"]).groupby("tensor").max()
        most = _number(said[0][-1]) * ALIKE * LAST_DIGIT
        over = means[means.index.isin(JUDGED) & (means > most)]
        found += [f"{name} has {value:.3g} times, not {said[0][-1]}" for name, value in over.items()]
    return found + [" ".join(words) for words in said if not _is_there(rows, *words)]


def _is_there(rows: pd.DataFrame, tensor: str, name: str, dtype: str, size: str, value: str) -> bool:
    """Whether a variant of that name has such a number there."""
    variant, _, detail = name.partition(" ")
    mine = rows[(rows["variant"] == variant) & (rows["tensor"] == tensor) & (rows["world_size"] == int(_number(size)))]
    mine = mine[mine["dtype"] == dtype]
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
    return float(text.replace(",", "").rstrip("\N{MULTIPLICATION SIGN}").replace("∞", "inf"))
