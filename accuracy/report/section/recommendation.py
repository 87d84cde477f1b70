"""Section: which variant to take: which is as accurate as the most accurate, and the fastest of those?

For each world size, seeds as one. Accuracy is that of the worst of out, dq, dk and dv over single device's: a model
trains on all four (lse is float32 whatever the case, delta follows from out).
"""

import math

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells
from accuracy.core.number import MISSING, ratio, seconds, size_in_bytes
from accuracy.report.series import Facet, geometric_means
from accuracy.results.cell import EFFECT

JUDGED = ("out", "dq", "dk", "dv")
AS_ACCURATE = math.exp(EFFECT)  # what the gate does not call a rise is no reason to take a slower variant
_OVER_SEEDS = {
    "seconds": "min",  # the first seed compiles kernels, and whatever else disturbs a time makes it longer
    "peak_bytes": "median",
}


def cost_of(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Per key and tensor, over the seeds: least seconds, median peak_bytes, geometric mean of x_single_device."""
    by = [*keys, "tensor"]
    return geometric_means(rows, by, ["x_single_device"]).join(rows.groupby(by).agg(_OVER_SEEDS)).reset_index()


def recommendation_table(facet: Facet) -> Table | None:
    """A row a world size; None where no two variants were measured over ranks. To take is the fastest of those that are
    as accurate as the most accurate, as the gate sees it; what has no time or no error is left out. Where nothing has a
    time, as cases that shared a GPU, it is any of them. Memory is that of real ranks: simulated ones share a device,
    and on a GPU blocks that are copied to be one call of the kernel."""
    rows = facet.whole[(facet.whole["world_size"] > 1) & facet.whole["tensor"].isin(JUDGED)]
    if rows["series"].nunique() < 2:
        return None
    rows = rows.assign(peak_bytes=rows["peak_bytes"].where(rows["world"] == "processes"))
    by_tensor = cost_of(rows, "world_size", "series").rename(columns={"x_single_device": "error"})
    found = by_tensor.groupby(["world_size", "series"])[["error", "seconds", "peak_bytes"]].max()
    timed = found["seconds"].notna().any()
    body = []
    for size, mine in found.dropna(subset=["error", "seconds"][: 1 + timed]).reset_index().groupby("world_size"):
        if len(mine) > 1:
            accurate = mine[mine["error"] <= mine["error"].min() * AS_ACCURATE]
            least = (_least(accurate, "seconds"), _least(mine, "seconds"), _least(mine, "peak_bytes"))
            body.append(cells(size, *(least if timed else [_all_of(accurate)])))
    head = ("world size", "take", "fastest", "least memory") if timed else ("world size", "take one of")
    more = ", time, peak memory" if timed else "; cases that share a GPU have no times, workers=1 measures them"
    caption = f"What to take, {facet.label}: worst of {', '.join(JUDGED)} over single device's error{more}"
    return Table(caption, head, tuple(body)) if body else None


def _all_of(found: pd.DataFrame) -> TableCell:
    named = found.sort_values("error", kind="stable")
    least, most = (ratio(each) for each in (named["error"].iloc[0], named["error"].iloc[-1]))
    detail = least if least == most else f"{least} to {most}"
    return TableCell(", ".join(map(str, named["series"])), detail=detail, kind="named")


def _least(found: pd.DataFrame, column: str) -> TableCell | str:
    if found[column].isna().all():
        return MISSING
    choice = found.sort_values(column, kind="stable").iloc[0]
    spent = [ratio(choice["error"]), seconds(choice["seconds"])]
    spent += [size_in_bytes(choice["peak_bytes"])] if choice["peak_bytes"] >= 0 else []
    name = str(choice["series"]).replace(",", ", ")  # where a line may break
    return TableCell(name, detail=", ".join(spent), kind="named")
