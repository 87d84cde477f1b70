"""Section: does the case's condition number predict the error, on all inputs? Error over condition number times u."""

import re
from typing import Any

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core import fields
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.core.number import as_float, geometric_mean, plain, scientific
from accuracy.report.series import series_order, tensor_order

SIZES = [name for name in fields.names(fields.DTYPE, fields.PROBLEM, fields.DEVICE) if name != "mask"]
NUMBERS = ("condition_softmax", "condition_sum", "condition_rounding")
DRAWN = ("out", "dq", "dk", "dv")
EXPECTED = 6**-0.5  # standard deviation of a uniform rounding error, u / sqrt(3), averaged over a binade
ROW_INCH = 0.34
MOST_LETTERS = 48


def condition_panels(measured: pd.DataFrame, slots: dict[str, int]) -> list[Panel]:
    """A panel for each dtype and size of problem in which conditions of two inputs or more were recorded.

    measured: the labelled table; slots: of the series that are drawn.
    """
    rows = measured[(measured["rank"] == -1) & measured["condition_rounding"].notna()]
    if rows.empty:
        return []
    rows = rows[rows["world_size"] == rows.groupby([*SIZES, "series"], dropna=False)["world_size"].transform("max")]
    found: list[Panel] = []
    for _, group in rows.groupby(SIZES, sort=False, dropna=False):
        named = group.assign(what=_names(group))
        if named["what"].nunique() > 1:
            found.append(_panel(f"condition-{len(found)}", _means(named), slots, _label(named)))
    return found


def _names(rows: pd.DataFrame) -> pd.Series:
    """Inputs, with their options and the mask where those differ."""
    several = rows.groupby("inputs")["inputs_options"].transform("nunique") > 1
    options = rows["inputs_options"].where(several, "")
    short = rows["mask"].str.replace(r"documents=\S+", "packed documents", regex=True)
    masks = short if short.nunique() == rows["mask"].nunique() else rows["mask"]
    masks = masks if rows["mask"].nunique() > 1 else pd.Series("", index=rows.index)
    return (rows["inputs"] + " " + options + " " + masks).str.split().str.join(" ")


def _label(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    sizes = f"{first['seqlen']} tokens, {first['heads']}/{first['heads_kv']} heads of {first['head_dim']}"
    return f"{first['dtype']}, {sizes}"


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over the seeds by inputs, series and tensor, and errors in units of their condition."""
    values = ["error_rel", *NUMBERS]
    how: dict[str, Any] = dict.fromkeys(values, geometric_mean)
    means = rows.groupby(["what", "series", "variant", "dtype", "tensor"], sort=False).agg(how).reset_index()
    unit = [
        FORMATS[effective_dtype(tensor, dtype)].unit_roundoff
        for tensor, dtype in zip(means["tensor"], means["dtype"], strict=True)
    ]
    return means.assign(**{f"by_{name}": means["error_rel"] / (means[name] * unit) for name in NUMBERS[1:]})


def _panel(slug: str, means: pd.DataFrame, slots: dict[str, int], label: str) -> Panel:
    drawn = means[means["series"].isin(list(slots))]
    tensors = tensor_order(means["tensor"])
    series = series_order(drawn)
    return Panel(
        slug=slug,
        label=label,
        note="Each variant at its largest world size. The line is at 1 / √6: one rounding of every term and the sum.",
        legend=tuple(mark.series_key(name, slots[name]) for name in series),
        charts=tuple(
            _chart(f"{slug}-{tensor}", drawn[drawn["tensor"] == tensor], tensor, slots, label)
            for tensor in DRAWN
            if tensor in tensors
        ),
        tables=(_conditions(means, tensors, label),),
        data=tuple(_quotients(means, tensors, name, label) for name in NUMBERS[1:]),
    )


def _chart(name: str, rows: pd.DataFrame, tensor: str, slots: dict[str, int], label: str) -> Chart:
    """A row for each inputs, a mark for each variant."""
    whats = list(dict.fromkeys(rows["what"]))
    column = "by_condition_rounding"
    axes = drawing.new_axes(tensor, "error / (condition_rounding · u)", height=0.75 + ROW_INCH * len(whats))
    drawing.log_x(axes, [0.1, 1.0, *rows[column].map(as_float)])  # at least a decade, so that what is near looks near
    for place, what in enumerate(whats):
        axes.axhline(-place, color=drawing.RULE, linewidth=0.6, zorder=0.5)
        axes.text(
            0,
            -place + 0.32,
            _drawable(what),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            color=drawing.INK,
        )
    axes.axvline(EXPECTED, color=drawing.FLOOR, linewidth=1.1, linestyle=(0, (1.2, 2)), gid="floor", zorder=1)
    for series, mine in rows.groupby("series", sort=False):
        slot = slots[str(series)]
        places = [-whats.index(what) for what in mine["what"]]
        axes.plot(
            mine[column], places, color=drawing.series_colour(slot), marker=mark.marker(slot), markersize=4.5,
            linestyle="none", gid=f"s{slot}", clip_on=False,
        )  # fmt: skip
    drawing.fix_ticks(axes.yaxis, [], [])
    axes.set_ylim(-len(whats) + 0.6, 0.6)
    title = f"Error of {tensor} over its condition and u, by inputs, {label}"
    spans = rows.groupby("what", sort=False)[column].agg(["min", "max"])
    parts = [f"{what} {plain(low)} to {plain(high)}" for what, low, high in spans.itertuples()]
    return Chart(to_svg(axes, name, title, "; ".join(parts) + "."), title)


def _drawable(name: str) -> str:
    """A table's text is anyone's: letters, digits and a few signs are drawn, the rest is not."""
    return re.sub(r"[^\w .,=+-]", "?", name, flags=re.ASCII)[:MOST_LETTERS]


def _conditions(means: pd.DataFrame, tensors: list[str], label: str) -> Table:
    """The condition numbers: those of a case are the same for every variant."""
    first = means.drop_duplicates(["what", "tensor"]).set_index(["what", "tensor"])
    rows = []
    for what in dict.fromkeys(means["what"]):
        softmax = first.loc[what, "condition_softmax"].iloc[0]
        sums = [f"{plain(_at(first, what, t, NUMBERS[1]))} / {plain(_at(first, what, t, NUMBERS[2]))}" for t in tensors]
        rows.append(cells(what, plain(softmax), *sums))
    caption = f"Condition numbers, {label}: of the softmax; of the sums, condition_sum / condition_rounding"
    return Table(caption, ("inputs", "softmax", *tensors), tuple(rows))


def _quotients(means: pd.DataFrame, tensors: list[str], name: str, label: str) -> Table:
    found = means.set_index(["what", "series", "tensor"])
    measured = set(zip(means["what"], means["series"], strict=True))
    rows = tuple(
        cells(what, series, *(_quotient(found, (what, series, tensor), name) for tensor in tensors))
        for what in dict.fromkeys(means["what"])
        for series in series_order(means)
        if (what, series) in measured
    )
    return Table(f"Relative error / ({name} x u), {label}, and the error", ("inputs", "variant", *tensors), rows)


def _quotient(found: pd.DataFrame, key: tuple[str, str, str], name: str) -> str:
    if key not in found.index:
        return plain(None)
    return f"{plain(found.at[key, f'by_{name}'])} ({scientific(found.at[key, 'error_rel'], 2)})"


def _at(first: pd.DataFrame, what: str, tensor: str, name: str) -> Any:
    return first.at[(what, tensor), name] if (what, tensor) in first.index else None
