"""Tables of the folded sections: what to take, and a page without scripts.

In: a run's labelled rows, over all ranks and seeds. Out: plain tables, which the page's templates lay out.
"""

import math
from collections.abc import Callable

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells
from accuracy.core.number import MISSING, count, ratio, scientific, seconds, size_in_bytes
from accuracy.report.matrix import JUDGED
from accuracy.report.series import Facet, geometric_means
from accuracy.results.cell import EFFECT

AS_ACCURATE = math.exp(EFFECT)  # what the gate does not call a rise is no reason to take a slower variant
MOST_SUMMARY_ROWS = 300


def recommendation_table(facet: Facet) -> Table | None:
    """Which variant to take: a row a world size, seeds as one; None where no two variants were measured over ranks.

    Accuracy is that of the worst of out, dq, dk and dv over single device's: a model trains on all four (lse is float32
    whatever the case, delta follows from out). To take is the fastest of those that are as accurate as the most
    accurate, as the gate sees it; what has no time or no error is left out. Where nothing has a time, as cases that
    shared a GPU, it is any of them. Memory is that of real ranks: simulated ones share a device, and on a GPU blocks
    that are copied to be one call of the kernel.
    """
    rows = facet.whole[(facet.whole["world_size"] > 1) & facet.whole["tensor"].isin(JUDGED)]
    if rows["series"].nunique() < 2:
        return None
    rows = rows.assign(peak_bytes=rows["peak_bytes"].where(rows["world"] == "processes"))
    by = ["world_size", "series", "tensor"]
    errors = geometric_means(rows, by, ["x_single_device"]).rename(columns={"x_single_device": "error"})
    # least seconds: the first seed compiles kernels, and whatever else disturbs a time makes it longer
    by_tensor = errors.join(rows.groupby(by).agg({"seconds": "min", "peak_bytes": "median"}))
    found = by_tensor.groupby(["world_size", "series"]).max()
    timed = found["seconds"].notna().any()
    body = []
    for size, mine in found.dropna(subset=["error", "seconds"][: 1 + timed]).reset_index().groupby("world_size"):
        if len(mine) > 1:
            accurate = mine[mine["error"] <= mine["error"].min() * AS_ACCURATE]
            least = (_least(accurate, "seconds"), _least(mine, "seconds"), _least(mine, "peak_bytes"))
            if timed:
                body.append(cells(size, *least))
                continue
            named = accurate.sort_values("error", kind="stable")
            first, last = (ratio(named["error"].iloc[place]) for place in (0, -1))
            detail = first if first == last else f"{first} to {last}"
            body.append(cells(size, TableCell(", ".join(map(str, named["series"])), detail=detail, kind="named")))
    head = ("world size", "take", "fastest", "least memory") if timed else ("world size", "take one of")
    more = ", time, peak memory" if timed else "; cases that share a GPU have no times, workers=1 measures them"
    caption = f"What to take, {facet.label}: worst of {', '.join(JUDGED)} over single device's error{more}"
    return Table(caption, head, tuple(body)) if body else None


def _least(found: pd.DataFrame, column: str) -> TableCell | str:
    if found[column].isna().all():
        return MISSING
    choice = found.sort_values(column, kind="stable").iloc[0]
    spent = [ratio(choice["error"]), seconds(choice["seconds"])]
    spent += [size_in_bytes(choice["peak_bytes"])] if choice["peak_bytes"] >= 0 else []
    name = str(choice["series"]).replace(",", ", ")  # where a line may break
    return TableCell(name, detail=", ".join(spent), kind="named")


def summary_table(whole: pd.DataFrame) -> Table:
    """The page without JavaScript: a plain row per (variant, setting, world size, tensor), seeds joined; the furthest
    from single device first where there are too many. whole: rows over all ranks."""
    errors = ("error_rel", "error_max", "diff_rel", "diff_max")
    ways: dict[str, Callable[[object], str]] = dict.fromkeys(errors, scientific)
    ways |= {"x_floor": ratio, "x_single_device": ratio}
    keys = ["facet", "series", "world_size", "tensor"]
    most = whole.groupby(keys)[["error_max", "diff_max"]].max()
    joined = geometric_means(whole, keys, [name for name in ways if name not in most]).join(most).reset_index()
    caption = "Rows over all ranks, geometric mean over seeds (maxima: greatest)"
    if len(joined) > MOST_SUMMARY_ROWS:
        caption += f"; the {MOST_SUMMARY_ROWS:,} furthest from single device of {count(len(joined), 'row')}"
        joined = joined.sort_values("x_single_device", ascending=False, kind="stable").head(MOST_SUMMARY_ROWS)
    order = ("series", "facet", "world_size", "tensor")
    rows = (
        cells(*(row[name] for name in order), *(way(row[name]) for name, way in ways.items()))
        for row in joined.to_dict("records")
    )
    return Table(caption, ("variant", "setting", "world size", "tensor", *ways), tuple(rows))
