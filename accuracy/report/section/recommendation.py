"""Section: which variants does no other beat in accuracy and cost at once, and which one to take?

For each world size. Accuracy is that of the worst of out, dq, dk and dv as a multiple of single device's: a model
trains on all four (lse is float32 whatever the case, delta follows from out).
"""

import math

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells
from accuracy.core.number import MISSING, as_float, ratio, seconds, size_in_bytes
from accuracy.report.costs import cost_of
from accuracy.report.series import Facet
from accuracy.results.policy import EFFECT

JUDGED = ("out", "dq", "dk", "dv")
AS_ACCURATE = math.exp(EFFECT)  # what the gate does not call a rise is no reason to take a slower variant


def choices(facet: Facet) -> pd.DataFrame:
    """Per (world_size, series) with two ranks or more: error (times single device), seconds, peak_bytes. What has no
    time or no error is left out."""
    rows = facet.whole[(facet.whole["world_size"] > 1) & facet.whole["tensor"].isin(JUDGED)]
    by_tensor = cost_of(rows, "world_size", "series").rename(columns={"x_single_device": "error"})
    found = by_tensor.groupby(["world_size", "series"])[["error", "seconds", "peak_bytes"]].max()
    return found.dropna(subset=["error", "seconds"]).reset_index()


def recommended(found: pd.DataFrame) -> pd.Series:
    """Of one world size: the fastest of those that are as accurate as the most accurate, as the gate sees it."""
    return _least(found[found["error"] <= found["error"].min() * AS_ACCURATE], "seconds")


def recommendation_table(facet: Facet) -> Table | None:
    """A row a world size; None where no two variants were measured over ranks."""
    found = choices(facet)
    body = []
    for size, mine in found.groupby("world_size"):
        if len(mine) > 1:
            smallest = _named(_least(mine, "peak_bytes")) if mine["peak_bytes"].notna().any() else MISSING
            body.append(cells(size, _named(recommended(mine)), _named(_least(mine, "seconds")), smallest))
    head = ("world size", "take", "fastest", "least memory")
    caption = f"What to take, {facet.label}: worst of {', '.join(JUDGED)} over single device's error, time, peak memory"
    return Table(caption, head, tuple(body)) if body else None


def _least(found: pd.DataFrame, column: str) -> pd.Series:
    return found.sort_values(column, kind="stable").iloc[0]


def _named(choice: pd.Series) -> TableCell:
    spent = (ratio(as_float(choice["error"])), seconds(choice["seconds"]), size_in_bytes(choice["peak_bytes"]))
    name = str(choice["series"]).replace(",", ", ")  # where a line may break
    return TableCell(name, detail=", ".join(spent), kind="named")
