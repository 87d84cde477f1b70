"""The answer of a run of stacks: the gradient furthest off, over the layers, beside every variant's gradients."""

import numpy as np
import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import Table, TableCell, grid
from accuracy.core.number import TIMES, count, geometric_mean
from accuracy.report.answer.facts_line import facts_line
from accuracy.report.answer.first_screen import Answer, finding, headline
from accuracy.report.answer.matrix import MOST_ROWS, heat_cell
from accuracy.report.answer.picture import Picture, draw, numbers
from accuracy.report.folder import Run
from accuracy.report.section.depth import GRADIENTS, Setting, settings_of
from accuracy.report.series import SINGLE_DEVICE, slot_of, spoken
from accuracy.results.claim import Claim
from accuracy.verdict import headline as template

EXCESS = 1.5  # the portable rule of the gate: above it, more than rounding of blocks is at work


def stack_answer(run: Run, claims: list[Claim]) -> Answer:
    """Of the rows of stacks; seeds as one."""
    settings = [each for each in settings_of(run.stacks) if len(_gradients(each))]
    facts = facts_line(run, claims)
    if not settings:
        title, advice = headline(run, finding(run.cases, [], None))
        return Answer(title, advice or Markup.escape(template.advice([], None, "", None, "")), facts)
    setting, worst = max(((each, _worst(each)) for each in settings), key=lambda pair: pair[1]["x_single_device"])
    broken = _not_finite(run.stacks)
    deepest = max(int(each.rows["layers"].max()) for each in settings)
    title, advice = headline(run, _broken(broken) if len(broken) else _finding(worst, deepest))
    advice = advice or Markup.escape(_advice(broken.iloc[0] if len(broken) else worst, bool(len(broken))))
    table, more = _matrix(settings, setting, worst)
    marks = "largest over layers and ranks, of the geometric mean over seeds"
    picture = _picture(setting, worst)
    return Answer(title, advice, facts, draw(picture), numbers(picture), table, more, marks, setting.label)


def _gradients(setting: Setting) -> pd.DataFrame:
    """The means of every gradient that has a finite ratio."""
    rows = setting.rows[setting.rows["tensor"].isin(GRADIENTS) & np.isfinite(setting.rows["x_single_device"])]
    keys = ["series", "variant", "tensor", "layers", "layer", "world_size"]
    return rows.groupby(keys)["x_single_device"].agg(geometric_mean).reset_index()


def _worst(setting: Setting) -> pd.Series:
    rows = _gradients(setting)
    return rows.iloc[int(rows["x_single_device"].argmax())]


def _not_finite(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of other variants than single device with elements that are not finite where the reference is: the fewest
    ranks and the last layer, where the backward begins, first."""
    found = rows[(rows["nonfinite"] > 0) & (rows["variant"] != SINGLE_DEVICE)]
    return found.sort_values(["world_size", "layers", "layer"], ascending=[True, True, False], kind="stable")


def _broken(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    where = f" of layer {first['layer']} of {first['layers']}" if pd.notna(first["layer"]) else ""
    return f"{first['variant']}: {first['tensor']}{where} is not finite at {count(int(first['world_size']), 'rank')}."


def _finding(worst: pd.Series, deepest: int) -> str:
    where = f"{worst['tensor']} of layer {worst['layer']} of {worst['layers']}"
    at = f"at {count(int(worst['world_size']), 'rank')}"
    if worst["x_single_device"] < EXCESS:
        return (
            f"Through {count(deepest, 'layer')} every gradient stays within "
            f"{template.times(worst['x_single_device'])} times the single-device stack's error. "
            f"Furthest is {where}, of {spoken(worst['series'])} {at}."
        )
    return (
        f"{spoken(worst['series'])}: {where} has {template.times(worst['x_single_device'])} times the single-device "
        f"stack's error {at}."
    )


def _advice(worst: pd.Series, broken: bool) -> str:
    if not broken and worst["x_single_device"] < EXCESS:
        return "Nothing to mend: distributing attention costs these stacks no accuracy that single device keeps."
    variant = worst["variant"]
    return f"Judge attention alone first: accuracy experiment=diagnose variant={variant} says whether it is a bug."


def _picture(setting: Setting, worst: pd.Series) -> Picture:
    rows = _gradients(setting)
    rows = rows[(rows["tensor"] == worst["tensor"]) & (rows["layers"] == worst["layers"])]
    rows = rows[rows["world_size"] == worst["world_size"]]
    lines = {
        str(name): list(zip(mine["layer"].astype(float), mine["x_single_device"].astype(float), strict=True))
        for name, mine in rows.groupby("series")
    }
    title = f"Error of {worst['tensor']}, {count(int(worst['world_size']), 'rank')}, times single device's stack"
    return Picture(title, "layer", lines, str(worst["series"]), slot_of(str(worst["variant"])))


def _matrix(settings: list[Setting], first: Setting, worst: pd.Series) -> tuple[Table, str]:
    """Each setting and variant's gradients, at their worst layer and number of ranks; the worst first."""
    found: dict[tuple[str, str], TableCell] = {}
    means = [(setting, _gradients(setting)) for setting in settings]
    rows = [
        (setting, str(series), mine.groupby("tensor")["x_single_device"].max())
        for setting, table in means
        for series, mine in table.groupby("series")
    ]
    rows.sort(key=lambda row: -row[2].max())
    for setting, series, largest in rows[:MOST_ROWS]:
        name = f"{series} · {setting.label}" if len(settings) > 1 else series
        for tensor, value in largest.items():
            cell = heat_cell(value)
            here = setting is first and series == worst["series"] and tensor == worst["tensor"]
            kind = f"{cell.kind}{' accused' if here else ''}"
            found[name, str(tensor)] = TableCell(cell.text.removesuffix(TIMES), "", kind, cell.heat, cell.hint)
    left = len(rows) - MOST_ROWS
    more = f"and {left} more, none worse" if left > 0 else ""
    return grid("Error over the single-device stack's", ["variant"], GRADIENTS, found), more
