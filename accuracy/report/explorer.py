"""What does the explorer draw from, and on which case does it open?

In: a run's labelled rows and its verdicts. Out: the rows of the page, each with its line's colour, its verdict, its
growth and its error in units of the condition number; errors along the sequence; the headline's case.
"""

from typing import Any

import numpy as np
import pandas as pd

from accuracy.chart import mark
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.report.folder import Material
from accuracy.report.matrix import gravest
from accuracy.report.series import SINGLE_DEVICE, slot_of
from accuracy.results.table import ALL_RANKS, LOSSES, METRICS, METRICS_OF_PAIRS
from accuracy.verdict.facts import Worst
from accuracy.verdict.growth import FEWEST_WORLD_SIZES, Growth, fit_growth
from accuracy.verdict.label import ROUNDING
from accuracy.verdict.rows import combinations

_LINE = ["facet", "series", "tensor"]
_PROFILE = ["facet", "series", "world_size", "tensor", "token_begin", "token_end"]


def preset_of(worst: Worst | None) -> dict[str, Any]:
    """The headline's case, which every view shows first, by the names of the page's state. y: the measure. Empty where
    no case has a ratio: the page then opens on its first row."""
    names = ("facet", "series", "tensor", "world_size")
    return {**{name: getattr(worst, name) for name in names}, "y": worst.column} if worst else {}


def rows_of(made: Material) -> pd.DataFrame:
    """Return all rows of the run, with `series`, `facet` and what the views need beside."""
    # of each row over all ranks the gravest label that is not rounding
    labels = {key: label for key, (label, _) in gravest(made.cells).items() if label != ROUNDING}
    keys = made.whole[["named", "dtype", "world_size", "tensor"]].itertuples(index=False, name=None)
    verdicts = pd.Series([labels.get(key, "") for key in keys], index=made.whole.index, dtype="object")
    rows = made.labelled.assign(verdict=verdicts.reindex(made.labelled.index, fill_value=""))
    known = rows.drop_duplicates("series").set_index("series")
    only_kernels = bool((rows["variant"] == SINGLE_DEVICE).all())
    slots = {label: slot_of(row["variant"], row["kernel"] if only_kernels else "") for label, row in known.iterrows()}
    colours = {label: -1 if (place := mark.colour(slot)) is None else place for label, slot in slots.items()}
    growth = _growth(rows).mask(*_steps(made))
    rows = rows.assign(colour=rows["series"].map(colours).astype("int64"), growth=growth)
    unused = [name for name in (*METRICS, *LOSSES, *METRICS_OF_PAIRS) if name in rows and rows[name].isna().all()]
    return _with_conditions(rows).drop(columns=unused)


def _steps(made: Material) -> tuple[pd.Series, pd.Series]:
    """In which rows no exponent tells the growth, as a cause is proven or it goes in a step; and that step."""
    told = {(each.variant, name): f"{each.steps[:1].upper()}{each.steps[1:]}" for each in made.found
            if each.proven or each.steps for name in each.tensors}  # fmt: skip
    keys = made.whole[["named", "tensor"]].itertuples(index=False, name=None)
    texts = pd.Series([told.get(key) for key in keys], made.whole.index, dtype="object").reindex(made.labelled.index)
    return texts.notna(), texts.fillna("")


def _growth(rows: pd.DataFrame) -> pd.Series:
    """Of each line over the world size the fitted exponent in words, in its rows over all ranks."""
    places = np.flatnonzero((rows["rank"] == ALL_RANKS) & rows["tensor"].notna())
    texts = np.full(len(rows), "", dtype="object")
    sizes, errors = (rows[name].to_numpy()[places] for name in ("world_size", "error_rel"))
    lines = combinations(rows.iloc[places], _LINE)
    order = np.argsort(lines, kind="stable")
    for line in np.split(order, np.flatnonzero(np.diff(lines[order])) + 1):
        if len({*sizes[line].tolist()}) >= FEWEST_WORLD_SIZES:
            growth = fit_growth(zip(sizes[line], errors[line], strict=True))
            if isinstance(growth, Growth) and growth.word != "unclear":
                texts[places[line]] = f"Relative error grows like {growth.text}: {growth.word}"
    return pd.Series(texts, rows.index)


def _with_conditions(rows: pd.DataFrame) -> pd.DataFrame:
    """`x_condition`: the error over condition_rounding x u, where conditions were recorded."""
    if "condition_rounding" not in rows or rows["condition_rounding"].isna().all():
        return rows
    kinds = rows[["tensor", "dtype"]].drop_duplicates().dropna().itertuples(index=False, name=None)
    units = {kind: FORMATS[effective_dtype(*kind)].unit_roundoff for kind in kinds}
    unit = [units.get(kind, np.nan) for kind in rows[["tensor", "dtype"]].itertuples(index=False, name=None)]
    return rows.assign(x_condition=rows["error_rel"] / (rows["condition_rounding"] * unit))


def profiles_of(rows: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """Errors along the sequence with the seeds joined: a row for each line, world size, tensor and bin of tokens."""
    cases = rows.drop_duplicates("case_id")[["case_id", "facet", "series", "world_size"]]
    found = positions.merge(cases, on="case_id")
    squared = found.assign(square=found["error_rms"].astype("float64") ** 2)
    joined = squared.groupby(_PROFILE, sort=False).agg({"square": "mean", "rank": "first"}).reset_index()
    return joined.assign(error_rms=np.sqrt(joined["square"])).drop(columns="square")
