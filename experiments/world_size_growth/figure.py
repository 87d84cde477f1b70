"""`python -m experiments.world_size_growth.figure`: README's picture, out of the published table."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from accuracy.chart.view import PALETTE, colour_of
from accuracy.results.table import ALL_RANKS, read_results

FOLDER = Path(__file__).parents[2] / "reports" / "world_size_growth" / "nvidia-h200"
TENSORS = ("out", "dq", "dk")
MARKERS = "os^Dv*P"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "accuracy", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def write_growth_figure(results: pd.DataFrame, path: Path) -> None:
    """x_single_device of out, dq and dk over the world size in the table's coarsest dtype: a line a variant, a band
    over seeds. Colours are fixed and the ground is white, so that it reads the same on a light and on a dark page."""
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].isin(TENSORS) & (results["world_size"] > 1)]
    dtype = rows.sort_values("floor_rel")["dtype"].iloc[-1]
    rows = rows[rows["dtype"] == dtype]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(9.2, 3.3), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(TENSORS), sharey=True)
        for axes, tensor in zip(panels, TENSORS, strict=True):
            mine = rows[rows["tensor"] == tensor]
            for index, variant in enumerate(sorted(rows["variant"].unique())):
                found = mine[mine["variant"] == variant].groupby("world_size")["x_single_device"]
                (colour, _), marker = PALETTE[colour_of(variant)], MARKERS[index % len(MARKERS)]
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


def fix_ticks(axis: Axis, places: list[float]) -> None:
    """Ticks exactly here, as plain numbers."""
    axis.set_ticks(places, [f"{place:g}" for place in places])
    axis.set_minor_locator(NullLocator())


if __name__ == "__main__":
    write_growth_figure(read_results(FOLDER), FOLDER / "growth.svg")
