"""Section: how wrong are the loss and the gradients of whole stacks? By setting, variant and depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.chart.view import Table, cells
from accuracy.core import fields
from accuracy.core.number import plain, scientific
from accuracy.results.table import OK

_SERIES = fields.names(fields.VARIANT, fields.PRECISION)
_ALONG = ("layers", "world_size", "seed")
SETTING = tuple(name for name in fields.names() if name not in (*_SERIES, *_ALONG))
GRADIENTS = ("dx", "d_query", "d_key", "d_value", "d_output")
NUMBERS: dict[str, tuple[str, Callable[[Any], str]]] = {  # head and way of writing of a column
    "world_size": ("W", str), "layers": ("L", str), "error_rel": ("dx of layer 1", scientific),
    "x_single_device": ("x single device", plain), "x_exact": ("x exact", plain),
    "diff_rel": ("diff from single device", scientific), "exact_diff_rel": ("exact's diff", scientific),
    "cosine": ("cosine", plain),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """The rows of one model at one precision."""

    label: str
    rows: pd.DataFrame

    @property
    def bottom(self) -> pd.DataFrame:
        """The gradient at the bottom of each stack: what all layers have added to."""
        return self.rows[(self.rows["tensor"] == "dx") & (self.rows["layer"] == 1)]


@dataclass(frozen=True)
class Stacks:
    """The section: a table of losses, the gradients below all layers of each setting that has numbers."""

    losses: Table
    bottoms: tuple[Table, ...]


def stacks_section(rows: pd.DataFrame) -> Stacks | None:
    """Of the rows of stacks; None where there are none."""
    if rows.empty:
        return None
    settings = settings_of(rows)
    return Stacks(_losses(settings), tuple(map(_numbers, settings)))


def settings_of(rows: pd.DataFrame) -> list[Setting]:
    """A setting for each combination of what varies beside variant, policy, depth, world size and seed."""
    measured = rows[(rows["status"] == OK) & rows["tensor"].notna()]
    own = [name for name in _SERIES if measured.groupby("variant")[name].nunique().gt(1).any()]
    cases = measured.drop_duplicates("case_id").to_dict("records")
    labels = {row["case_id"]: fields.label(row, ["variant", *own]) for row in cases}
    named = measured.assign(series=measured["case_id"].map(labels))
    varying = [name for name in SETTING if named[name].nunique() > 1] or ["weights"]
    found = []
    for key, group in named.groupby(varying, sort=True, dropna=False):
        words = (plain(value) if isinstance(value, float) else value for value in key)
        label = ", ".join(f"{name} {word}" for name, word in zip(varying, words, strict=True))
        found.append(Setting(label, group))
    return found


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
