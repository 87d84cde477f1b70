"""Section: how do errors grow from layer to layer, with the depth of the stack and with the world size?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core import fields
from accuracy.core.number import as_float, geometric_mean, plain, scientific
from accuracy.report.section.growth import drawable
from accuracy.results.table import OK

_SERIES = fields.names(fields.VARIANT, fields.PRECISION)
_ALONG = ("layers", "world_size", "seed")
SETTING = tuple(name for name in fields.names() if name not in (*_SERIES, *_ALONG))
GRADIENTS = ("dx", "d_query", "d_key", "d_value", "d_output")
CHARTED = ("x", "dx", "d_query", "d_key")
REFERENCES = {
    "single_device_rel": (drawing.SINGLE_DEVICE, "single-device", (6, 3)),
    "exact_rel": (drawing.FLOOR, "floor", (1.2, 2)),
}


@dataclass(frozen=True)
class Setting:
    """The rows of one model at one precision; series: its variants and policies in the order of their colours."""

    slug: str
    label: str
    rows: pd.DataFrame
    series: tuple[str, ...]

    def deepest(self) -> pd.DataFrame:
        """The rows of the deepest stack on the most ranks of each series."""
        rows = self.rows[self.rows["layers"] == self.rows["layers"].max()]
        return rows[rows["world_size"] == rows.groupby("series")["world_size"].transform("max")]

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
    counts = {str(reason): int(number) for reason, number in unmeasured.items()}
    return Stacks(_losses(settings), tuple(_panel(setting) for setting in settings), counts)


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
        label = ", ".join(_word(name, value) for name, value in zip(varying, key, strict=True))
        found.append(Setting(f"setting-{place}", label, group, tuple(dict.fromkeys(sorted(group["series"])))))
    return found


def _word(name: str, value: object) -> str:
    return f"{name} {plain(value)}" if isinstance(value, float) else f"{name} {value}"


def _panel(setting: Setting) -> Panel:
    deepest = setting.deepest()
    charts = [
        _chart(setting, deepest[deepest["tensor"] == tensor], "layer", f"{tensor} by layer")
        for tensor in CHARTED
        if deepest["layers"].max() > 1
    ]
    bottom = setting.bottom()
    for column, title in (("layers", "dx of layer 1 by depth"), ("world_size", "dx of layer 1 by world size")):
        rows = bottom if column == "layers" else bottom[bottom["layers"] == bottom["layers"].max()]
        if rows[column].nunique() > 1:
            charts.append(_chart(setting, rows, column, title))
    legend = [mark.series_key(name, slot) for slot, name in enumerate(setting.series, 1)]
    legend += [
        mark.reference_key("single-device kernel"),
        replace(mark.reference_key("floor"), label="exact attention"),
    ]
    return Panel(setting.slug, setting.label, legend=tuple(legend), charts=tuple(charts), data=(_numbers(setting),))


def _chart(setting: Setting, rows: pd.DataFrame, column: str, title: str) -> Chart:
    axes = drawing.new_axes(title, column.replace("_", " "))
    values = rows[["error_rel", *REFERENCES]].to_numpy().ravel()
    drawing.log_y(axes, values)
    drawing.world_x(axes, [int(value) for value in rows[column].unique()])
    for name, (colour, css, dash) in REFERENCES.items():
        places, middle = _points(rows, column, name)
        axes.plot(places, middle, color=colour, linewidth=1.1, linestyle=(0, dash), gid=css, clip_on=False)
    said = []
    for slot, series in enumerate(setting.series, 1):
        places, middle = _points(rows[rows["series"] == series], column, "error_rel")
        axes.plot(
            places, middle, color=drawing.series_colour(slot), marker=mark.marker(slot), markersize=3,
            linestyle=mark.dash(slot), linewidth=1.4, gid=f"s{slot}", clip_on=False,
        )  # fmt: skip
        if middle:
            said.append(
                f"{series} {scientific(middle[0])} at {places[0]:.0f} to {scientific(middle[-1])} at {places[-1]:.0f}"
            )
    full = f"Relative error of {title}, {setting.label}"
    name = f"{setting.slug}-{title.replace(' ', '-')}"
    return Chart(to_svg(axes, name, full, f"Log-log. {'; '.join(said)}."), full)


def _points(rows: pd.DataFrame, column: str, name: str) -> tuple[list[float], list[float]]:
    middle = rows.groupby(column)[name].apply(geometric_mean)
    return drawable([as_float(place) for place in middle.index], list(middle))


def _numbers(setting: Setting) -> Table:
    """The bottom gradient and the worst gradient of every stack."""
    head = (
        "series",
        "W",
        "L",
        "dx of layer 1",
        "x single device",
        "x exact",
        "diff from single device",
        "exact's diff",
        "cosine",
    )
    order = {name: place for place, name in enumerate(setting.series)}
    rows = sorted(
        setting.bottom().to_dict("records"), key=lambda row: (order[row["series"]], row["layers"], row["world_size"])
    )
    ways: Sequence[tuple[str, Callable[[object], str]]] = (
        ("error_rel", scientific), ("x_single_device", plain), ("x_exact", plain), ("diff_rel", scientific),
        ("exact_diff_rel", scientific), ("cosine", plain),
    )  # fmt: skip
    made = [
        cells(row["series"], row["world_size"], row["layers"], *(way(row[name]) for name, way in ways)) for row in rows
    ]
    return Table(f"The gradient below all layers, {setting.label}", head, tuple(made))


def _losses(settings: Sequence[Setting]) -> Table:
    """Of every setting, variant and policy: how wrong the loss is, and how wrong the worst gradient, at most."""
    made = []
    for setting in settings:
        for series, found in setting.rows.groupby("series"):
            gradients = found[found["tensor"].isin(GRADIENTS)]
            worst = max(gradients.to_dict("records"), key=lambda row: row["error_rel"])
            loss = found.loc[found["tensor"] == "loss", "error_rel"].max()
            numbers = scientific(loss), scientific(worst["error_rel"]), scientific(worst["single_device_rel"])
            where = f"{worst['tensor']} of layer {worst['layer']}/{worst['layers']}, W={worst['world_size']}"
            most = plain(gradients["x_single_device"].max())
            made.append(cells(f"{setting.label}: {series}", *numbers, most, where))
    head = ("setting and variant", "loss", "worst gradient", "single device's there", "most x single device", "where")
    return Table("Relative error of the loss and of the worst gradient", head, tuple(made))
