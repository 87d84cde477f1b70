"""How wrong are the loss and the gradients of whole stacks? Their first screen, and tables by setting and depth.

The first screen is about the gradient furthest off: over the layers, beside every variant's gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import Table, cells
from accuracy.core import fields
from accuracy.core.number import count, geometric_mean, plain, scientific
from accuracy.report.about import facts_line
from accuracy.report.first_screen import Answer, finding, headline
from accuracy.report.folder import Run
from accuracy.report.matrix import heat_table
from accuracy.report.picture import Picture, draw, lines_of, numbers
from accuracy.report.series import SINGLE_DEVICE, slot_of, spoken
from accuracy.results.claim import Claim
from accuracy.results.table import OK
from accuracy.verdict import headline as template

EXCESS = 1.5  # the portable rule of the gate: above it, more than rounding of blocks is at work
_SERIES = fields.names(fields.VARIANT, fields.PRECISION)
_ALONG = ("layers", "world_size", "seed")
SETTING = tuple(name for name in fields.names() if name not in (*_SERIES, *_ALONG))
GRADIENTS = ("dx", "d_query", "d_key", "d_value", "d_output")
MARKS = "largest over layers and ranks, of the geometric mean over seeds"
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
    def gradients(self) -> pd.DataFrame:
        """The means of every gradient that has a finite ratio."""
        rows = self.rows[self.rows["tensor"].isin(GRADIENTS) & np.isfinite(self.rows["x_single_device"])]
        keys = ["series", "variant", "tensor", "layers", "layer", "world_size"]
        return rows.groupby(keys)["x_single_device"].agg(geometric_mean).reset_index()


def settings_of(rows: pd.DataFrame) -> list[Setting]:
    """A setting for each combination of what varies beside variant, policy, depth, world size and seed."""
    measured = rows[(rows["status"] == OK) & rows["tensor"].notna()]
    own = [name for name in _SERIES if measured.groupby("variant")[name].nunique().gt(1).any()]
    cases = measured.drop_duplicates("case_id").to_dict("records")
    labels = {row["case_id"]: fields.label(row, ["variant", *own]) for row in cases}
    named = measured.assign(series=measured["case_id"].map(labels))
    varying = [name for name in SETTING if named[name].nunique() > 1] or ["weights"]
    floats = [name for name in varying if named[name].dtype == float]
    rounded = {name for name in floats if named[name].dropna().map(plain).nunique() == named[name].nunique()}
    found = []
    for key, group in named.groupby(varying, sort=True, dropna=False):
        words = (f"{name} {plain(x) if name in rounded else x}" for name, x in zip(varying, key, strict=True))
        label = ", ".join(words)
        found.append(Setting(label, group))
    return found


def stack_answer(run: Run, claims: list[Claim]) -> Answer:
    """The first screen of the rows of stacks; seeds as one."""
    means = {each.label: rows for each in settings_of(run.stacks) if len(rows := each.gradients)}
    facts = facts_line(run, claims)
    if not means:
        title, advice = headline(run, finding(run.cases, [], None))
        return Answer(title, advice or Markup.escape(template.advice([], None, "", None, "")), facts)
    furthest = {label: rows.iloc[int(rows["x_single_device"].argmax())] for label, rows in means.items()}
    setting, worst = max(furthest.items(), key=lambda pair: pair[1]["x_single_device"])
    broken = _not_finite(run.stacks)
    deepest = max(int(rows["layers"].max()) for rows in means.values())
    title, advice = headline(run, _broken(broken) if broken is not None else _finding(worst, deepest))
    advice = advice or Markup.escape(_advice(worst, broken))
    picture = _picture(means[setting], worst)
    table, more = _matrix(means, setting, worst)
    return Answer(title, advice, facts, draw(picture), numbers(picture), table, more, MARKS)


def _not_finite(rows: pd.DataFrame) -> pd.Series | None:
    """A row of another variant than single device with elements that are not finite where the reference is: of the
    fewest ranks and the last layer, where the backward begins."""
    found = rows[(rows["nonfinite"] > 0) & (rows["variant"] != SINGLE_DEVICE)]
    order = found.sort_values(["world_size", "layers", "layer"], ascending=[True, True, False], kind="stable")
    return order.iloc[0] if len(order) else None


def _broken(first: pd.Series) -> str:
    where = f" of layer {first['layer']} of {first['layers']}" if pd.notna(first["layer"]) else ""
    return f"{first['variant']}: {first['tensor']}{where} is not finite at {count(int(first['world_size']), 'rank')}."


def _finding(worst: pd.Series, deepest: int) -> str:
    where = f"{worst['tensor']} of layer {worst['layer']} of {worst['layers']}"
    at, times = f"at {count(int(worst['world_size']), 'rank')}", template.times(worst["x_single_device"])
    if worst["x_single_device"] < EXCESS:
        return (
            f"Through {count(deepest, 'layer')} every gradient stays within {times} times the single-device stack's "
            f"error. Furthest is {where}, of {spoken(worst['series'])} {at}."
        )
    return f"{spoken(worst['series'])}: {where} has {times} times the single-device stack's error {at}."


def _advice(worst: pd.Series, broken: pd.Series | None) -> str:
    if broken is None and worst["x_single_device"] < EXCESS:
        return "Nothing to mend: distributing attention costs these stacks no accuracy that single device keeps."
    variant = (worst if broken is None else broken)["variant"]
    return f"Judge attention alone first: accuracy experiment=diagnose variant={variant} says whether it is a bug."


def _picture(rows: pd.DataFrame, worst: pd.Series) -> Picture:
    same = ["tensor", "layers", "world_size"]
    rows = rows[(rows[same] == worst[same]).all(axis=1)]
    lines = lines_of(rows.set_index(["series", "layer"])["x_single_device"])
    title = f"Error of {worst['tensor']}, {count(int(worst['world_size']), 'rank')}, times single device's stack"
    return Picture(title, "layer", lines, str(worst["series"]), slot_of(str(worst["variant"])))


def _matrix(means: dict[str, pd.DataFrame], setting: str, worst: pd.Series) -> tuple[Table, str]:
    """Each setting and variant's gradients, at their worst layer and number of ranks; the worst first."""

    def name(series: object, label: str) -> str:
        return f"{series} · {label}" if len(means) > 1 else str(series)

    rows = {
        name(series, label): mine.groupby("tensor")["x_single_device"].max()
        for label, table in means.items()
        for series, mine in table.groupby("series")
    }
    order = sorted(rows, key=lambda key: -rows[key].max())
    ordered = {key: {str(tensor): float(value) for tensor, value in rows[key].items()} for key in order}
    here = (name(worst["series"], setting), str(worst["tensor"]))
    return heat_table("Error over the single-device stack's", list(GRADIENTS), ordered, here, {})


def tables(rows: pd.DataFrame) -> list[Table]:
    """The section: losses, then the gradient below all layers of each setting; nothing where there are no rows."""
    settings = settings_of(rows) if len(rows) else []
    return [_losses(settings), *map(_bottom, settings)] if len(rows) else []


def _losses(settings: Sequence[Setting]) -> Table:
    """Of every setting, variant and policy: how wrong the loss is, and how wrong the worst gradient, at most."""
    made = []
    for setting in settings:
        for series, found in setting.rows.groupby("series"):
            gradients = found[found["tensor"].isin(GRADIENTS)]
            worst = gradients.iloc[int(gradients["error_rel"].argmax())]
            loss = found.loc[found["tensor"] == "loss", "error_rel"].max()
            written = map(scientific, (loss, worst["error_rel"], worst["single_device_rel"]))
            where = f"{worst['tensor']} of layer {worst['layer']}/{worst['layers']}, W={worst['world_size']}"
            most = plain(gradients["x_single_device"].max())
            made.append(cells(f"{setting.label}: {series}", *written, most, where))
    head = ("setting and variant", "loss", "worst gradient", "single device's there", "most x single device", "where")
    return Table("Relative error of the loss and of the worst gradient", head, tuple(made))


def _bottom(setting: Setting) -> Table:
    """The gradient at the bottom of each stack: what all layers have added to."""
    rows = setting.rows[(setting.rows["tensor"] == "dx") & (setting.rows["layer"] == 1)]
    order = rows.sort_values(["series", "layers", "world_size"], kind="stable").to_dict("records")
    made = (cells(row["series"], *(way(row[name]) for name, (_, way) in NUMBERS.items())) for row in order)
    head = ("series", *(title for title, _ in NUMBERS.values()))
    return Table(f"The gradient below all layers, {setting.label}", head, tuple(made))
