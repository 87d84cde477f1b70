"""Section: how do errors grow from layer to layer, with the depth of the stack and with the world size?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core import fields
from accuracy.core.number import geometric_mean, plain, scientific
from accuracy.report.series import slots_of
from accuracy.results.table import OK

_SERIES = fields.names(fields.VARIANT, fields.PRECISION)
_ALONG = ("layers", "world_size", "seed")
SETTING = tuple(name for name in fields.names() if name not in (*_SERIES, *_ALONG))
GRADIENTS = ("dx", "d_query", "d_key", "d_value", "d_output")
CHARTED = ("x", "dx", "d_query", "d_key")
REFERENCES = {"single_device_rel": "single-device", "exact_rel": "floor"}
NUMBERS: dict[str, tuple[str, Callable[[Any], str]]] = {  # head and way of writing of a column
    "world_size": ("W", str), "layers": ("L", str), "error_rel": ("dx of layer 1", scientific),
    "x_single_device": ("x single device", plain), "x_exact": ("x exact", plain),
    "diff_rel": ("diff from single device", scientific), "exact_diff_rel": ("exact's diff", scientific),
    "cosine": ("cosine", plain),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """The rows of one model at one precision; series: its variants and policies in the order of their colours."""

    slug: str
    label: str
    rows: pd.DataFrame
    series: tuple[str, ...]

    @property
    def slots(self) -> dict[str, int]:
        """Of colour and marker: the colour is the variant's."""
        return slots_of(self.rows)

    @property
    def bottom(self) -> pd.DataFrame:
        """The gradient at the bottom of each stack: what all layers have added to."""
        return self.rows[(self.rows["tensor"] == "dx") & (self.rows["layer"] == 1)]


@dataclass(frozen=True)
class Stacks:
    """The section: a table of losses, a panel for each setting that has numbers, and reasons with their number of
    cases."""

    losses: Table
    panels: tuple[Panel, ...]
    unmeasured: dict[str, int]


def stacks_section(rows: pd.DataFrame) -> Stacks | None:
    """Of the rows of stacks; None where there are none."""
    if rows.empty:
        return None
    settings = settings_of(rows)
    cases = rows.drop_duplicates("case_id")
    unmeasured = cases.loc[cases["status"] != OK, "reason"].value_counts()
    return Stacks(
        _losses(settings), tuple(map(_panel, settings)), {str(each): int(n) for each, n in unmeasured.items()}
    )


def settings_of(rows: pd.DataFrame) -> list[Setting]:
    """A setting for each combination of what varies beside variant, policy, depth, world size and seed."""
    measured = rows[(rows["status"] == OK) & rows["tensor"].notna()]
    own = [name for name in _SERIES if measured.groupby("variant")[name].nunique().gt(1).any()]
    cases = measured.drop_duplicates("case_id").to_dict("records")
    labels = {row["case_id"]: fields.label(row, ["variant", *own]) for row in cases}
    named = measured.assign(series=measured["case_id"].map(labels))
    varying = [name for name in SETTING if named[name].nunique() > 1] or ["weights"]
    found = []
    for place, (key, group) in enumerate(named.groupby(varying, sort=True, dropna=False)):
        words = (plain(value) if isinstance(value, float) else value for value in key)
        label = ", ".join(f"{name} {word}" for name, word in zip(varying, words, strict=True))
        found.append(Setting(f"setting-{place}", label, group, tuple(sorted(group["series"].unique()))))
    return found


def _panel(setting: Setting) -> Panel:
    bottom, rows = setting.bottom, setting.rows
    deepest = rows[rows["layers"] == rows["layers"].max()]
    widest = deepest[deepest["world_size"] == deepest.groupby("series")["world_size"].transform("max")]
    shown = [(widest[widest["tensor"] == tensor], "layer", f"{tensor} by layer") for tensor in CHARTED]
    shown = shown if deepest["layers"].max() > 1 else []
    by_size = bottom[bottom["layers"] == bottom["layers"].max()]
    along = ((bottom, "layers", "dx of layer 1 by depth"), (by_size, "world_size", "dx of layer 1 by world size"))
    shown += [each for each in along if each[0][each[1]].nunique() > 1]
    legend = [mark.series_key(name, setting.slots[name]) for name in setting.series]
    references = mark.reference_key("single-device kernel"), mark.reference_key("floor", "exact attention")
    return Panel(
        setting.slug,
        setting.label,
        legend=(*legend, *references),
        charts=tuple(_chart(setting, *each) for each in shown),
        data=(_numbers(setting),),
    )


def _chart(setting: Setting, rows: pd.DataFrame, column: str, title: str) -> Chart:
    axes = drawing.new_axes(title, column.replace("_", " "))
    drawing.log_y(axes, rows[["error_rel", *REFERENCES]].to_numpy().ravel())
    drawing.world_x(axes, [int(value) for value in rows[column].unique()])
    for name, css in REFERENCES.items():
        axes.plot(*_points(rows, column, name), **drawing.REFERENCES[css], clip_on=False)
    said = []
    for series, slot in setting.slots.items():
        points = _points(rows[rows["series"] == series], column, "error_rel")
        drawing.line(axes, *points, slot, markersize=3, linewidth=1.4)
        ends = [f"{scientific(error)} at {place:.0f}" for place, error in zip(*points, strict=True)]
        said += [f"{series} {ends[0]} to {ends[-1]}"] if ends else []
    full = f"Relative error of {title}, {setting.label}"
    return Chart(to_svg(axes, f"{setting.slug}-{title.replace(' ', '-')}", full, f"Log-log. {'; '.join(said)}."), full)


def _points(rows: pd.DataFrame, column: str, name: str) -> tuple[list[float], list[float]]:
    middle = rows.groupby(column)[name].apply(geometric_mean)
    return drawing.drawable(middle.index, middle)


def _numbers(setting: Setting) -> Table:
    rows = setting.bottom.sort_values(["series", "layers", "world_size"], kind="stable").to_dict("records")
    made = (cells(row["series"], *(way(row[name]) for name, (_, way) in NUMBERS.items())) for row in rows)
    head = ("series", *(title for title, _ in NUMBERS.values()))
    return Table(f"The gradient below all layers, {setting.label}", head, tuple(made))


def _losses(settings: Sequence[Setting]) -> Table:
    """Of every setting, variant and policy: how wrong the loss is, and how wrong the worst gradient, at most."""
    made = []
    for setting in settings:
        for series, found in setting.rows.groupby("series"):
            gradients = found[found["tensor"].isin(GRADIENTS)]
            worst = gradients.iloc[int(gradients["error_rel"].argmax())]
            loss = found.loc[found["tensor"] == "loss", "error_rel"].max()
            numbers = map(scientific, (loss, worst["error_rel"], worst["single_device_rel"]))
            where = f"{worst['tensor']} of layer {worst['layer']}/{worst['layers']}, W={worst['world_size']}"
            most = plain(gradients["x_single_device"].max())
            made.append(cells(f"{setting.label}: {series}", *numbers, most, where))
    head = ("setting and variant", "loss", "worst gradient", "single device's there", "most x single device", "where")
    return Table("Relative error of the loss and of the worst gradient", head, tuple(made))
