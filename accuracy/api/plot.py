"""`accuracy.plot`: a table of `accuracy.measure` as matplotlib charts. Each function draws into `ax`, or a new figure.
A variant has the colour that it has in reports.

value: any column of numbers, error over single device's unless another is named; those above 0 are averaged over seeds
as geometric means.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from accuracy.chart.view import INK, PALETTE, colour_of
from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.results.cell import KEYS
from accuracy.results.glossary import COLUMNS
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, OK, require

Chosen = str | list[str] | None
DASHES = "solid", "dashed", "dotted", "dashdot"
DEFAULT = "x_single_device"
RATIOS = DEFAULT, "x_floor"  # with a line at 1


@entry()
def growth(table: pd.DataFrame, *, value: str = DEFAULT, tensor: Chosen = None, ax: Axes | None = None) -> Axes:
    """Draw a value over all ranks against the world size, a line for each setting and tensor. tensor: one or several of
    out, lse, dq, dk, dv, delta; None: out, dq, dk and dv. Raises ConfigError."""
    rows = _rows(table, value, tensor, ("world_size",))
    rows = rows[rows["rank"] == ALL_RANKS]
    axes = _lines(rows, value, "world_size", ax)
    axes.set_xscale("log", base=2)
    sizes = sorted(rows["world_size"].unique())
    axes.set_xticks(sizes, [str(size) for size in sizes])
    return axes


@entry()
def by_rank(table: pd.DataFrame, *, value: str = DEFAULT, tensor: Chosen = None, ax: Axes | None = None) -> Axes:
    """Draw a value of each rank of the largest world, a line for each setting and tensor; arguments as in `growth`."""
    rows = _rows(table, value, tensor, ("rank",))
    rows = rows[(rows["rank"] != ALL_RANKS) & (rows["world_size"] == rows["world_size"].max())]
    axes = _lines(rows, value, "rank", ax)
    axes.set_xticks(sorted(rows["rank"].unique()))
    return axes


@entry()
def heatmap(table: pd.DataFrame, *, value: str = DEFAULT, ax: Axes | None = None) -> Axes:
    """Draw a value over all ranks, a row for each setting and a column for each tensor; colours are logarithmic."""
    rows = _rows(table, value, list(ALL_TENSORS), ())
    rows = rows[rows["rank"] == ALL_RANKS].assign(setting=lambda each: _labels(each, ("tensor",)))
    grid = rows.groupby(["setting", "tensor"], sort=False)[value].agg(_mean).unstack("tensor")
    grid = grid[[name for name in ALL_TENSORS if name in grid]]
    axes = ax or plt.subplots(figsize=(1.5 + 1.1 * grid.shape[1], 1.2 + 0.35 * len(grid)), layout="constrained")[1]
    numbers = grid.to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.where(np.isfinite(numbers) & (numbers > 0), np.log10(numbers), np.nan)
    axes.imshow(logarithms, aspect="auto", cmap="viridis")
    axes.set_xticks(range(grid.shape[1]), list(grid.columns))
    axes.set_yticks(range(len(grid)), list(grid.index))
    middle = np.nanmean(logarithms) if np.isfinite(logarithms).any() else 0.0
    for (row, column), number in np.ndenumerate(numbers):
        colour = "black" if logarithms[row, column] > middle else "white"
        axes.text(column, row, f"{number:.3g}", ha="center", va="center", color=colour)
    axes.set_title(f"{value} [{COLUMNS[value].unit}]")
    return axes


def _rows(table: pd.DataFrame, value: str, tensor: Chosen, needed: tuple[str, ...]) -> pd.DataFrame:
    if not isinstance(table, pd.DataFrame):
        raise ConfigError(f"{type(table).__name__} is no table; give what accuracy.measure or accuracy.load returns")
    chosen = [tensor] if isinstance(tensor, str) else list(tensor or ("out", "dq", "dk", "dv"))
    numbers = [name for name, each in COLUMNS.items() if each.unit and name in table]
    for what, name, allowed in (("value", value, numbers), *(("tensor", name, ALL_TENSORS) for name in chosen)):
        if name not in allowed:
            raise unknown(what, name, allowed)
    require(table, ("variant", "tensor", "rank", "status", *needed))
    rows = table[(table["status"] == OK) & table["tensor"].isin(chosen) & table[value].notna()]
    if rows.empty:
        raise ConfigError(f"the table has no measured {value} of {', '.join(chosen)}; its column reason may say why")
    return rows


def _lines(rows: pd.DataFrame, value: str, along: str, ax: Axes | None) -> Axes:
    """A colour for each variant, a marker for each tensor, dashes for each dtype and whatever else differs."""
    axes = ax or plt.subplots(figsize=(8, 4.5), layout="constrained")[1]
    but = (along, *(("world_size",) if along == "rank" else ()))
    others = pd.concat(_labels(each, ("tensor", *but)) for _, each in rows.groupby("variant", sort=False))
    rows = rows.assign(setting=_labels(rows, but), other=others)
    rows["other"] = [text.removeprefix(name).strip() for text, name in zip(rows["other"], rows["variant"], strict=True)]
    places = {name: colour_of(name) for name in rows["variant"].astype(str).unique()}
    colours = {name: "black" if place == INK else PALETTE[place][0] for name, place in places.items()}
    markers = dict(zip(ALL_TENSORS, "osD^vP", strict=False))
    dashes = dict(zip(rows["other"].unique(), itertools.cycle(DASHES), strict=False))
    for setting, each in rows.groupby("setting", sort=False):
        line = each.groupby(along)[value].agg(_mean)
        variant, tensor, other = each[["variant", "tensor", "other"]].iloc[0]
        look = {"color": colours[variant], "marker": markers.get(tensor, "X"), "linestyle": dashes[other]}
        axes.plot(line.index, line.to_numpy(), label=str(setting), **look)
    if (rows[value] > 0).all():
        axes.set_yscale("log")
    if value in RATIOS:
        axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0, label="_1")
        for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            ticks("{x:.3g}")
    axes.set_xlabel(along.replace("_", " "))
    axes.set_ylabel(f"{value} [{COLUMNS[value].unit}]")
    axes.set_title(COLUMNS[value].meaning, fontsize="small")
    keys = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
    tensors = rows["tensor"].unique()
    keys += [Line2D([], [], color="0.4", linestyle="", marker=markers[name], label=name) for name in tensors]
    keys += [Line2D([], [], color="0.4", linestyle=dash, label=name) for name, dash in dashes.items() if name]
    axes.legend(handles=keys, fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return axes


def _labels(rows: pd.DataFrame, but: tuple[str, ...]) -> pd.Series:
    """Return the variant and whatever else tells the rows apart, in a word each."""
    labels = rows["variant"].astype(str)
    for name in dict.fromkeys(name for name in ("tensor", *KEYS) if name in rows and name not in ("variant", *but)):
        values = rows[name].astype(str)
        if len(pd.DataFrame({"labels": labels, "values": values}).drop_duplicates()) > labels.nunique():
            labels += (f" {name} " if pd.api.types.is_numeric_dtype(rows[name]) else " ") + values
    return labels


def _mean(values: pd.Series) -> float:
    positive = (values > 0).all() and np.isfinite(values).all()
    return float(np.exp(np.log(values).mean()) if positive else values.mean())
