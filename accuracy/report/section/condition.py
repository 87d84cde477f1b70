"""Section: does the case's condition number predict the error, on all inputs? Error over condition number times u."""

import pandas as pd

from accuracy.chart.view import Panel, Table, grid
from accuracy.core import fields
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.core.number import MISSING, plain, scientific
from accuracy.report.series import geometric_means, series_order, tensor_order
from accuracy.verdict.rows import combinations

SIZES = [name for name in fields.names(fields.DTYPE, fields.PROBLEM, fields.PATH, fields.DEVICE) if name != "mask"]
NUMBERS = ("condition_softmax", "condition_sum", "condition_rounding")


def condition_panels(measured: pd.DataFrame) -> list[Panel]:
    """A panel for each dtype and size of problem in which conditions of two inputs or more were recorded.

    measured: the labelled table.
    """
    rows = measured[(measured["rank"] == -1) & measured["condition_rounding"].notna()].reset_index(drop=True)
    problems = pd.Series(combinations(rows, SIZES), rows.index)
    widest = rows.groupby([problems, "series"], dropna=False)["world_size"].transform("max")
    rows = rows[rows["world_size"] == widest]
    kinds = pd.Series(combinations(rows, ["inputs", "inputs_options", "mask"]), rows.index)
    several = kinds.groupby(problems).transform("nunique") > 1
    found: list[Panel] = []
    for _, group in rows[several].groupby(problems, sort=False):
        named = group.assign(what=_names(group))
        if named["what"].nunique() > 1:
            first = group.iloc[0]
            sizes = f"{first['seqlen']} tokens, {first['heads']}/{first['heads_kv']} heads of {first['head_dim']}"
            found.append(_panel(f"condition-{len(found)}", _means(named), f"{first['dtype']}, {sizes}"))
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
    keys = ["what", "series", "variant", "dtype", "tensor"]
    means = geometric_means(rows, keys, ("error_rel", *NUMBERS), sort=False).reset_index()
    kinds = zip(means["tensor"], means["dtype"], strict=True)
    unit = [FORMATS[effective_dtype(*kind)].unit_roundoff for kind in kinds]
    return means.assign(**{f"by_{name}": means["error_rel"] / (means[name] * unit) for name in NUMBERS[1:]})


def _panel(slug: str, means: pd.DataFrame, label: str) -> Panel:
    tensors = tensor_order(means["tensor"])
    return Panel(
        slug,
        label,
        "Each variant at its largest world size. One rounding of every term and of the sum makes 1 / √6.",
        tables=(_conditions(means, tensors, label),),
        data=tuple(_quotients(means, tensors, name, label) for name in NUMBERS[1:]),
    )


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
