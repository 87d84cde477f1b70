"""Section: does the case's condition number predict the error, on all inputs? Error over condition number times u."""

import re
from typing import Any

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, grid
from accuracy.core import fields
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.core.number import MISSING, geometric_mean, plain, scientific
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
    widest = rows.groupby([*SIZES, "series"], dropna=False)["world_size"].transform("max")
    found: list[Panel] = []
    for _, group in rows[rows["world_size"] == widest].groupby(SIZES, sort=False, dropna=False):
        named = group.assign(what=_names(group))
        if named["what"].nunique() > 1:
            first = group.iloc[0]
            sizes = f"{first['seqlen']} tokens, {first['heads']}/{first['heads_kv']} heads of {first['head_dim']}"
            found.append(_panel(f"condition-{len(found)}", _means(named), slots, f"{first['dtype']}, {sizes}"))
    return found


def _names(rows: pd.DataFrame) -> pd.Series:
    """Inputs, with their options and the mask where those differ."""
    several = rows.groupby("inputs")["inputs_options"].transform("nunique") > 1
    options = rows["inputs_options"].where(several, "")
    masks = rows["mask"].str.replace(r"documents=\S+", "packed documents", regex=True)
    masks = masks if masks.nunique() == rows["mask"].nunique() else rows["mask"]
    told = masks if rows["mask"].nunique() > 1 else ""
    return (rows["inputs"] + " " + options + " " + told).str.split().str.join(" ")


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over the seeds by inputs, series and tensor, and errors in units of their condition."""
    how: dict[str, Any] = dict.fromkeys(["error_rel", *NUMBERS], geometric_mean)
    means = rows.groupby(["what", "series", "variant", "dtype", "tensor"], sort=False).agg(how).reset_index()
    kinds = zip(means["tensor"], means["dtype"], strict=True)
    unit = [FORMATS[effective_dtype(*kind)].unit_roundoff for kind in kinds]
    return means.assign(**{f"by_{name}": means["error_rel"] / (means[name] * unit) for name in NUMBERS[1:]})


def _panel(slug: str, means: pd.DataFrame, slots: dict[str, int], label: str) -> Panel:
    drawn = means[means["series"].isin(list(slots))]
    tensors = tensor_order(means["tensor"])
    return Panel(
        slug,
        label,
        "Each variant at its largest world size. The line is at 1 / √6: one rounding of every term and the sum.",
        legend=tuple(mark.series_key(name, slots[name]) for name in series_order(drawn)),
        charts=tuple(
            _chart(f"{slug}-{tensor}", drawn[drawn["tensor"] == tensor], tensor, slots, label)
            for tensor in DRAWN
            if tensor in tensors
        ),
        tables=(_conditions(means, tensors, label),),
        data=tuple(_quotients(means, tensors, name, label) for name in NUMBERS[1:]),
    )


def _chart(name: str, rows: pd.DataFrame, tensor: str, slots: dict[str, int], label: str) -> Chart:
    places = {what: -place for place, what in enumerate(rows["what"].unique())}
    column = "by_condition_rounding"
    axes = drawing.new_axes(tensor, "error / (condition_rounding · u)", height=0.75 + ROW_INCH * len(places))
    drawing.log_x(axes, [0.1, 1.0, *rows[column]])  # at least a decade, so that what is near looks near
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 7.5}
    for what, place in places.items():
        axes.axhline(place, color=drawing.RULE, linewidth=0.6, zorder=0.5)
        axes.text(0, place + 0.32, _drawable(what), color=drawing.INK, **look)
    axes.axvline(EXPECTED, **drawing.REFERENCES["floor"], zorder=1)
    for series, mine in rows.groupby("series", sort=False):
        slot = slots[str(series)]
        look = {"color": drawing.series_colour(slot), "marker": mark.marker(slot), "gid": f"s{slot}"}
        axes.plot(mine[column], mine["what"].map(places), markersize=4.5, linestyle="none", clip_on=False, **look)
    drawing.fix_ticks(axes.yaxis, [])
    axes.set_ylim(-len(places) + 0.6, 0.6)
    title = f"Error of {tensor} over its condition and u, by inputs, {label}"
    spans = rows.groupby("what", sort=False)[column].agg(["min", "max"])
    parts = [f"{what} {plain(low)} to {plain(high)}" for what, low, high in spans.itertuples()]
    return Chart(to_svg(axes, name, title, "; ".join(parts) + "."), title)


def _drawable(name: str) -> str:
    """A table's text is anyone's: letters, digits and a few signs are drawn, the rest is not."""
    return re.sub(r"[^\w .,=+-]", "?", name, flags=re.ASCII)[:MOST_LETTERS]


def _conditions(means: pd.DataFrame, tensors: list[str], label: str) -> Table:
    """The condition numbers: those of a case are the same for every variant."""
    texts: dict[tuple[str, str], str] = {}
    for row in means.drop_duplicates(["what", "tensor"]).to_dict("records"):
        softmax, *sums = (plain(row[name]) for name in NUMBERS)
        texts.setdefault((row["what"], "softmax"), softmax)
        texts[row["what"], row["tensor"]] = " / ".join(sums)
    caption = f"Condition numbers, {label}: of the softmax; of the sums, condition_sum / condition_rounding"
    return grid(caption, ["inputs"], ("softmax", *tensors), texts, f"{MISSING} / {MISSING}")


def _quotients(means: pd.DataFrame, tensors: list[str], name: str, label: str) -> Table:
    whats, series = [*means["what"].unique()], series_order(means)
    rows = sorted(means.to_dict("records"), key=lambda row: (whats.index(row["what"]), series.index(row["series"])))
    texts = {
        (row["what"], row["series"], row["tensor"]): f"{plain(row[f'by_{name}'])} ({scientific(row['error_rel'], 2)})"
        for row in rows
    }
    caption = f"Relative error / ({name} x u), {label}, and the error"
    return grid(caption, ("inputs", "variant"), tensors, texts)
