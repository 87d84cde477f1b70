"""The rows without JavaScript: one plain row per (variant, setting, world size, tensor), seeds joined."""

import pandas as pd

from accuracy.chart.view import Table, cells
from accuracy.core.number import count, geometric_mean, ratio, scientific

MOST_ROWS = 800
_KEYS = ["facet", "series", "world_size", "tensor"]


def summary_table(whole: pd.DataFrame) -> Table:
    """Rows over all ranks; the furthest from single device first where there are too many."""
    how = dict.fromkeys(("error_rel", "diff_rel", "x_floor", "x_single_device"), geometric_mean)
    joined = whole.groupby(_KEYS).agg({**how, "error_max": "max", "diff_max": "max"}).reset_index()
    caption = "Rows over all ranks, geometric mean over seeds (maxima: greatest)"
    if len(joined) > MOST_ROWS:
        caption += f"; the {MOST_ROWS:,} furthest from single device of {count(len(joined), 'row')}"
        joined = joined.sort_values("x_single_device", ascending=False, kind="stable").head(MOST_ROWS)
    rows = tuple(
        cells(
            row.series,
            row.facet,
            row.world_size,
            row.tensor,
            scientific(row.error_rel),
            scientific(row.error_max),
            scientific(row.diff_rel),
            scientific(row.diff_max),
            ratio(row.x_floor),
            ratio(row.x_single_device),
        )
        for row in joined.itertuples()
    )
    head = ("variant", "setting", "world size", "tensor", "error_rel", "error_max", "diff_rel", "diff_max")
    return Table(caption, (*head, "x_floor", "x_single_device"), rows)
