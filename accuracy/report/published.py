"""What does a published run have beside its table? Errors along the sequence in few settings, and a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from accuracy.chart import mark
from accuracy.chart.drawing import fix_ticks
from accuracy.report.embedded import MOST_LEGIBLE_WORLD
from accuracy.report.series import SINGLE_DEVICE, facets_of, with_labels
from accuracy.report.why import zigzag_cases
from accuracy.results.table import ALL_RANKS, OK

MOST_SETTINGS = 2
TENSORS = ("out", "dq", "dk")
MARKERS = "os^Dv*P"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "accuracy", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def drawn(results: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The positions to publish: of the coarsest dtypes where chunks are legible, and zigzag's chunks."""
    held = results[results["case_id"].isin(positions["case_id"])]
    if held.empty:
        return positions[:0]
    chunks = zigzag_cases(held)
    shown = [*chunks.index[chunks["world_size"] == chunks["world_size"].max()]]
    measured = results[(results["status"] == OK) & results["tensor"].notna()]
    for facet in facets_of(with_labels(results).loc[measured.index])[:MOST_SETTINGS]:
        rows = facet.rows[facet.rows["case_id"].isin(held["case_id"])]
        size = chosen_world(rows["world_size"].unique().tolist()) if len(rows) else None
        shown += [*rows.loc[(rows["world_size"] == size) | (rows["variant"] == SINGLE_DEVICE), "case_id"]]
    return positions[positions["case_id"].isin(shown)]


def chosen_world(sizes: Sequence[int]) -> int:
    """The largest world size whose chunks can still be told apart, else the smallest that has chunks at all."""
    legible = [size for size in sizes if 1 < size <= MOST_LEGIBLE_WORLD]
    return int(max(legible) if legible else min([size for size in sizes if size > 1] or sizes))


def write_growth_figure(results: pd.DataFrame, path: Path) -> None:
    """x_single_device of out, dq and dk over the world size in the table's coarsest dtype: a line a variant, a band
    over seeds. Colours are fixed and the ground is white, so that it reads the same on a light and on a dark page.
    Nothing is written where fewer than two world sizes were measured."""
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].isin(TENSORS) & (results["world_size"] > 1)]
    if rows["world_size"].nunique() < 2:
        return
    dtype = rows.sort_values("floor_rel")["dtype"].iloc[-1]
    rows = rows[rows["dtype"] == dtype]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(9.2, 3.3), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(TENSORS), sharey=True)
        for axes, tensor in zip(panels, TENSORS, strict=True):
            mine = rows[rows["tensor"] == tensor]
            for index, variant in enumerate(sorted(rows["variant"].unique())):
                found = mine[mine["variant"] == variant].groupby("world_size")["x_single_device"]
                (colour, _), marker = mark.PALETTE[mark.colour_of(variant)], MARKERS[index % len(MARKERS)]
                middle = found.mean()
                if len(middle):
                    axes.plot(middle, marker=marker, markersize=4, color=colour, label=variant)
                    axes.fill_between(middle.index, found.min(), found.max(), color=colour, alpha=0.15, linewidth=0)
            axes.axhline(1, color="#666666", linewidth=0.8, linestyle=":")
            axes.set(xscale="log", yscale="log", title=tensor, xlabel="world size")
            fix_ticks(axes.xaxis, sorted(mine["world_size"].unique()))
            fix_ticks(axes.yaxis, [1, 1.2, 1.5, 2, 3, 4])
        panels[0].set_ylabel(f"error / single device's error, {dtype}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
        figure.savefig(path, metadata={"Date": None})
