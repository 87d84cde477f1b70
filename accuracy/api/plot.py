"""`accuracy.plot`: a table of `accuracy.measure` as matplotlib charts. Each function draws into `ax`, or a new figure.

value: any column of numbers, error over single device's unless another is named; those above 0 are averaged over seeds
as geometric means.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from accuracy.core.errors import ConfigError, entry, unknown
from accuracy.results.cell import KEYS
from accuracy.results.glossary import COLUMNS
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, OK, require

Chosen = str | list[str] | None
DEFAULT = "x_single_device"
RATIOS = DEFAULT, "x_floor"  # with a line at 1


@entry()
def growth(table: pd.DataFrame, *, value: str = DEFAULT, tensor: Chosen = None, ax: Axes | None = None) -> Axes:
    """Draw a value over all ranks against the world size, a line for each setting and tensor. tensor: one or several of
    out, lse, dq, dk, dv, delta; None: out, dq, dk and dv. Raises ConfigError."""
    rows = _rows(table, value, tensor, "world_size")
    axes = _lines(rows[rows["rank"] == ALL_RANKS], value, "world_size", ax)
    axes.set_xscale("log", base=2)
    return axes


@entry()
def by_rank(table: pd.DataFrame, *, value: str = DEFAULT, tensor: Chosen = None, ax: Axes | None = None) -> Axes:
    """Draw a value of each rank of the largest world, a line for each setting and tensor; arguments as in `growth`."""
    rows = _rows(table, value, tensor, "rank")
    rows = rows[(rows["rank"] != ALL_RANKS) & (rows["world_size"] == rows["world_size"].max())]
    return _lines(rows, value, "rank", ax)


def _rows(table: pd.DataFrame, value: str, tensor: Chosen, along: str) -> pd.DataFrame:
    if not isinstance(table, pd.DataFrame):
        raise ConfigError(f"{type(table).__name__} is no table; give what accuracy.measure or accuracy.load returns")
    chosen = [tensor] if isinstance(tensor, str) else list(tensor or ("out", "dq", "dk", "dv"))
    numbers = [name for name, each in COLUMNS.items() if each.unit and name in table]
    for what, name, allowed in (("value", value, numbers), *(("tensor", name, ALL_TENSORS) for name in chosen)):
        if name not in allowed:
            raise unknown(what, name, allowed)
    require(table, ("variant", "tensor", "rank", "status", along))
    rows = table[(table["status"] == OK) & table["tensor"].isin(chosen) & table[value].notna()]
    if rows.empty:
        raise ConfigError(f"the table has no measured {value} of {', '.join(chosen)}; its column reason may say why")
    return rows


def _lines(rows: pd.DataFrame, value: str, along: str, ax: Axes | None) -> Axes:
    setting = _labels(rows, (along, "world_size"))
    lines = rows.groupby([along, setting], sort=False)[value].agg(_mean).unstack().sort_index()
    axes: Axes = lines.plot(
        ax=ax, marker="o", logy=bool((rows[value] > 0).all()), xticks=list(lines.index), title=COLUMNS[value].meaning,
        xlabel=along.replace("_", " "), ylabel=f"{value} [{COLUMNS[value].unit}]",
    )  # fmt: skip
    axes.set_xticks(list(lines.index), [str(each) for each in lines.index])
    if value in RATIOS:
        axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0, label="_1")
    return axes


def _labels(rows: pd.DataFrame, but: tuple[str, ...]) -> pd.Series:
    """Return the variant and whatever else tells the rows apart, in a word each."""
    labels = rows["variant"].astype(str)
    for name in dict.fromkeys(name for name in ("tensor", *KEYS) if name in rows and name not in ("variant", *but)):
        values = rows[name].astype(str)
        if len(pd.DataFrame({"labels": labels, "values": values}).drop_duplicates()) > labels.nunique():
            labels += (f" {name} " if pd.api.types.is_numeric_dtype(rows[name]) else " ") + values
    return labels.rename("setting")


def _mean(values: pd.Series) -> float:
    positive = (values > 0).all() and np.isfinite(values).all()
    return float(np.exp(np.log(values).mean()) if positive else values.mean())
