"""What does the explorer draw from, on which case does it open, and how do all rows travel inside the page?

In: a run's labelled rows and its verdicts. Out: the rows of the page, each with its line's colour, its verdict, its
growth and its error in units of the condition number; errors along the sequence; the headline's case.

Columns travel as JSON, gzip, base64: no byte of it can end a script element. What is the same in every row of a case is
written once; texts are numbers of a list of the distinct ones. Where there are too many rows, digits go first, then
per-rank rows of the later seeds; rows over all ranks stay to the last.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.chart.view import colour_of
from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.core.number import count
from accuracy.report.about import command
from accuracy.report.folder import Material
from accuracy.report.series import SINGLE_DEVICE
from accuracy.report.worst import gravest
from accuracy.results.table import ALL_RANKS, LOSSES, METRICS, METRICS_OF_PAIRS
from accuracy.verdict.facts import Worst
from accuracy.verdict.growth import FEWEST_WORLD_SIZES, Growth, fit_growth
from accuracy.verdict.label import ROUNDING
from accuracy.verdict.rows import combinations

BUDGET_BYTES = 2_600_000  # of base64 text: 50,000 rows fit, and the page stays below 3 MB with its charts
COMFORTABLE_BYTES = 950_000  # what rows may cost before they are cut to what a page shows
MOST_POSITION_BYTES = 250_000
MOST_LEGIBLE_WORLD = 16  # ranks whose chunks can be told apart in a line along the sequence
WHOLE_DIGITS = 6  # of rows over all ranks always: the page joins their seeds and rounds once, as its tables do
OF_RANKS = ("error_rel", "error_max", "error_mean", "diff_rel", "diff_max", "diff_mean", "x_single_device",
            "worst_token")  # fmt: skip
_ONLY_WHOLE = [name for name in (*METRICS, *LOSSES, "worst_batch", "worst_head", "worst_dim") if name not in OF_RANKS]
_FORMATS = np.array(
    ["%d", *(f"%.{digits}g" for digits in range(1, WHOLE_DIGITS + 1)), '"-inf"', '"inf"', "null"], "object"
)
_LINE = ["facet", "series", "tensor"]
_PROFILE = ["facet", "series", "world_size", "tensor", "token_begin", "token_end"]
_OF_POSITIONS = [*_PROFILE, "rank", "error_rms"]


def preset_of(worst: Worst | None) -> dict[str, Any]:
    """The headline's case, which every view shows first, by the names of the page's state. y: the measure. Empty where
    no case has a ratio: the page then opens on its first row."""
    names = ("facet", "series", "tensor", "world_size")
    return {**{name: getattr(worst, name) for name in names}, "y": worst.column} if worst else {}


def rows_of(made: Material) -> pd.DataFrame:
    """Return all rows of the run, with `series`, `facet` and what the views need beside."""
    # of each row over all ranks the gravest label that is not rounding
    labels = {key: label for key, label in gravest(made.cells).items() if label != ROUNDING}
    keys = made.whole[["named", "dtype", "world_size", "tensor"]].itertuples(index=False, name=None)
    verdicts = pd.Series([labels.get(key, "") for key in keys], index=made.whole.index, dtype="object")
    rows = made.labelled.assign(verdict=verdicts.reindex(made.labelled.index, fill_value=""))
    known = rows.drop_duplicates("series").set_index("series")
    name = "kernel" if (rows["variant"] == SINGLE_DEVICE).all() else "variant"
    colours = known[name].map(colour_of)
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


@dataclass(frozen=True)
class EmbeddedRows:
    """encoded: base64 of gzip; rows: how many it holds; note: what was left out or rounded."""

    encoded: str
    rows: int
    note: str


EMPTY = EmbeddedRows("", 0, "")


def encode_rows(
    results: pd.DataFrame, budget: int = BUDGET_BYTES, profiles: pd.DataFrame | None = None, setting: str = ""
) -> EmbeddedRows:
    """All rows of the labelled table, or as many as fit: over all ranks first, then per-rank rows seed by seed.

    profiles: errors along the sequence; setting: whose to keep where not all fit.
    """
    bins, total = _positions(profiles, setting), len(results)
    rounded = "Numbers of single ranks are rounded to {} significant digits; results.parquet has every row and column."
    firsts = results.drop_duplicates("case_id").to_dict("records")
    commands = {str(row["case_id"]): json.dumps(command(row)) for row in firsts}
    comfortable = min(COMFORTABLE_BYTES, budget)
    encoded = _base64(_pieces(results, WHOLE_DIGITS, commands, bins), comfortable)
    if len(encoded) <= comfortable:
        return EmbeddedRows(encoded, total, f"All {count(total, 'row')}. {rounded.format(WHOLE_DIGITS)}")
    columns = [name for name in _ONLY_WHOLE if name in results]  # no view of single ranks shows these
    kept = results[columns].where(results["rank"] == ALL_RANKS)
    results = results.assign(**{name: kept[name] for name in columns})
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    encoded, keep, left = _base64(_pieces(results, 3, commands, bins)), total, budget - len(_base64([bins]))
    while len(encoded) > budget and keep:
        keep = int(keep * min(0.95, 0.98 * max(left, 0) / len(encoded)))
        encoded = _base64(_pieces(results.loc[sorted(priority[:keep])], 3, commands, bins if keep else ""))
    held = f"All {count(total, 'row')}."
    if keep < total:
        held = f"This file holds {keep:,} of {count(total, 'row')}: {total - keep:,} were left out to keep it small."
    slim = f"Of single ranks the page has {', '.join(OF_RANKS)}. {rounded.format(3)}"
    return EmbeddedRows(encoded, keep, f"{held} {slim}")


def _pieces(rows: pd.DataFrame, digits: int, commands: dict[str, str], bins: str) -> Iterator[str]:
    """The page's JSON, made column by column as it is asked for. commands: by case, as JSON."""
    case, _ = pd.factorize(rows["case_id"])
    _, first = np.unique(case, return_index=True)
    firsts = rows.iloc[first]
    each = np.where(rows["rank"] == ALL_RANKS, WHOLE_DIGITS, digits)
    yield f'{{"count":{len(rows)},"cases":{json.dumps(case.tolist(), separators=(",", ":"))},'
    yield f'"commands":[{", ".join(commands[str(each)] for each in firsts["case_id"])}],"columns":['
    for number, name in enumerate(rows):
        same = _same(rows[name], first[case])
        about = f'"name":{json.dumps(name)},"by_case":{json.dumps(same)}'
        yield "," if number else ""
        yield f"{{{about},{_values(firsts[name], WHOLE_DIGITS) if same else _values(rows[name], each)}}}"
    yield f"]{bins}}}"


def _same(values: pd.Series, first: np.ndarray) -> bool:
    """Whether each value is that of the row which its case has first."""
    if values.dtype == np.float64:  # codes of many different numbers take long
        numbers = values.to_numpy()
        return np.array_equal(numbers, numbers[first], equal_nan=True)
    codes, _ = pd.factorize(values)
    return np.array_equal(codes, codes[first])


def _base64(pieces: Iterable[str], most: float = math.inf) -> str:
    """Of gzip, the same in every process; a text that will be longer than `most` is given up there."""
    packer = zlib.compressobj(6, wbits=31)  # 31: gzip, without a time
    packed, size = [], 0
    for piece in pieces:
        packed.append(packer.compress(piece.encode("ascii")))
        size += len(packed[-1])
        if 4 * size > 3 * most:
            break
    return base64.b64encode(b"".join([*packed, packer.flush()])).decode()


def _positions(profiles: pd.DataFrame | None, setting: str) -> str:
    """`,"positions":{...}`: columns as those of the rows, of the setting alone where there are many; empty where there
    are none, or not even its legible lines fit."""
    if profiles is None or profiles.empty:
        return ""
    here = profiles["facet"] == setting
    legible = here & (profiles["world_size"] <= MOST_LEGIBLE_WORLD)
    for kept in (profiles, profiles[here], profiles[legible]):
        columns = ",".join(f'{{"name":"{name}",{_values(kept[name], 3)}}}' for name in _OF_POSITIONS)
        text = f',"positions":{{"count":{len(kept)},"columns":[{columns}]}}'
        if len(_base64([text])) <= MOST_POSITION_BYTES:
            return text
    return ""


def _values(values: pd.Series, digits: np.ndarray | int) -> str:
    """`"texts":[...],"places":[...]` (-1: missing) or `"numbers":[...]`; digits: of each, or of all."""
    if not pd.api.types.is_numeric_dtype(values):
        places, distinct = pd.factorize(values)
        texts = json.dumps([str(text) for text in distinct])
        return f'"texts":{texts},"places":{json.dumps(places.tolist(), separators=(",", ":"))}'
    return f'"numbers":[{_numbers(values.to_numpy(dtype="float64", na_value=np.nan), digits)}]'


def _numbers(values: np.ndarray, digits: np.ndarray | int) -> str:
    """As JSON can say them, which has no infinity: that travels as text. Whole numbers below 2^53 keep all digits. One
    format for all: a call for each of ten million numbers would be most of a page's time."""
    finite = np.isfinite(values)
    whole = finite & (values == np.trunc(values)) & (np.abs(values) < 2**53)
    if whole.all():
        return json.dumps(values.astype("int64").tolist(), separators=(",", ":"))[1:-1]
    kinds = np.select([whole, finite, np.isnan(values), values > 0], [0, digits, -1, -2], -3)
    formats = _FORMATS[kinds].tolist()  # the last three by negative places
    return ",".join(formats) % tuple(values[finite].tolist())
