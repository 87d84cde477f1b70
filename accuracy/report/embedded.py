"""How do all rows travel inside the page? Columns as JSON, gzip, base64: no byte of it can end a script element.

What is the same in every row of a case is said once; texts are places in a list of the distinct ones. Where there are
too many rows, digits go first, then per-rank rows of the later seeds; rows over all ranks stay to the last.
"""

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from accuracy.chart.view import Table, cells
from accuracy.core.number import count, ratio, scientific
from accuracy.report.profile import coarsening
from accuracy.report.section.missing import command
from accuracy.report.section.positions import MOST_LEGIBLE_WORLD
from accuracy.report.series import geometric_means
from accuracy.results.table import ALL_RANKS, LOSSES, METRICS

BUDGET_BYTES = 2_600_000  # of base64 text: 50,000 rows fit, and the page stays below 3 MB with its charts
COMFORTABLE_BYTES = 950_000  # what rows may cost before they are cut to what a page shows
MOST_POSITION_BYTES = 250_000
WHOLE_DIGITS = 6  # of rows over all ranks always: the page joins their seeds and rounds once, as its tables do
OF_RANKS = ("error_rel", "error_max", "error_mean", "diff_rel", "diff_max", "diff_mean", "x_single_device", "ulp_max",
            "worst_token")  # fmt: skip
_ONLY_WHOLE = [name for name in (*METRICS, *LOSSES, "worst_batch", "worst_head", "worst_dim") if name not in OF_RANKS]
_OF_POSITIONS = ("facet", "series", "world_size", "tensor", "token_begin", "token_end", "rank", "error_rms")
MOST_SUMMARY_ROWS = 300
_FORMATS = np.array(
    ["%d", *(f"%.{digits}g" for digits in range(1, WHOLE_DIGITS + 1)), '"-inf"', '"inf"', "null"], "object"
)


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
    bins, commands, total = _positions(profiles, setting), _commands(results), len(results)
    rounded = "Numbers of single ranks are rounded to {} significant digits; results.parquet has every row and column."
    for digits in (WHOLE_DIGITS, 4):
        most = min(COMFORTABLE_BYTES, budget)
        encoded = _base64(_pieces(results, digits, commands, bins), most)
        if len(encoded) <= most:
            return EmbeddedRows(encoded, total, f"All {count(total, 'row')}. {rounded.format(digits)}")
    results = _slim(results)
    rounded = f"Of single ranks the page has {', '.join(OF_RANKS)}. {rounded}"
    digits = 3  # as the page writes every number
    encoded = _base64(_pieces(results, digits, commands, bins))
    if len(encoded) <= budget:
        return EmbeddedRows(encoded, total, f"All {count(total, 'row')}. {rounded.format(digits)}")
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    keep, left = total, budget - len(_base64([bins]))
    while len(encoded) > budget and keep:
        keep = int(keep * min(0.95, 0.98 * max(left, 0) / len(encoded)))
        encoded = _base64(_pieces(results.loc[sorted(priority[:keep])], digits, commands, bins if keep else ""))
    note = (
        f"This file holds {keep:,} of {count(total, 'row')}: {total - keep:,} were left out to keep it small, "
        f"per-rank rows of the later seeds first. {rounded.format(digits)}"
    )
    return EmbeddedRows(encoded, keep, note)


def _slim(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of single ranks without the columns that no view of theirs shows."""
    columns = [name for name in _ONLY_WHOLE if name in results]
    kept = results[columns].where(results["rank"] == ALL_RANKS)
    return results.assign(**{name: kept[name] for name in columns})


def _commands(rows: pd.DataFrame) -> dict[str, str]:
    """By case, what measures it again, as JSON."""
    firsts = rows.drop_duplicates("case_id").to_dict("records")
    return {str(row["case_id"]): json.dumps(command(row)) for row in firsts}


def _pieces(rows: pd.DataFrame, digits: int, commands: Mapping[str, str], bins: str = "") -> Iterator[str]:
    """The page's JSON, made column by column as it is asked for."""
    case, _ = pd.factorize(rows["case_id"])
    _, first = np.unique(case, return_index=True)
    firsts = rows.iloc[first]
    each = np.where(rows["rank"] == ALL_RANKS, WHOLE_DIGITS, digits)
    yield f'{{"count":{len(rows)},"cases":{json.dumps(case.tolist(), separators=(",", ":"))},'
    yield f'"commands":[{", ".join(commands[str(each)] for each in firsts["case_id"])}],"columns":['
    for place, name in enumerate(rows):
        same = _same(rows[name], first[case])
        about = f'"name":{json.dumps(name)},"by_case":{json.dumps(same)}'
        yield "," if place else ""
        yield f"{{{about},{_values(firsts[name], WHOLE_DIGITS) if same else _values(rows[name], each)}}}"
    yield f"]{bins}}}"


def _same(values: pd.Series, first: np.ndarray) -> bool:
    """Whether each value is that of the row which its case has first."""
    if values.dtype == np.float64:  # codes of many different numbers take long
        numbers = values.to_numpy()
        firsts = numbers[first]
        return bool(((numbers == firsts) | (np.isnan(numbers) & np.isnan(firsts))).all())
    codes, _ = pd.factorize(values)
    return bool((codes == codes[first]).all())


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
    """`,"positions":{...}`: columns as those of the rows, in wider bins where there are many; empty where there are
    none, or not even one setting's fit."""
    if profiles is None or profiles.empty:
        return ""
    for kept in _candidates(profiles, setting):
        columns = ",".join(f'{{"name":"{name}",{_values(kept[name], 3)}}}' for name in _OF_POSITIONS)
        text = f',"positions":{{"count":{len(kept)},"columns":[{columns}]}}'
        if len(_base64([text])) <= MOST_POSITION_BYTES:
            return text
    return ""


def _candidates(profiles: pd.DataFrame, setting: str) -> Iterator[pd.DataFrame]:
    """All lines in wider and wider bins; if even the widest are too many, the setting's."""
    whole = profiles
    for whole in coarsening(profiles, MOST_POSITION_BYTES):
        yield whole
    here = whole["facet"] == setting
    yield whole[here]
    yield whole[here & (whole["world_size"] <= MOST_LEGIBLE_WORLD)]


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


def summary_table(whole: pd.DataFrame) -> Table:
    """The page without JavaScript: a plain row per (variant, setting, world size, tensor), seeds joined; the furthest
    from single device first where there are too many. whole: rows over all ranks."""
    errors = ("error_rel", "error_max", "diff_rel", "diff_max")
    ways: dict[str, Callable[[object], str]] = dict.fromkeys(errors, scientific)
    ways |= {"x_floor": ratio, "x_single_device": ratio}
    keys = ["facet", "series", "world_size", "tensor"]
    most = whole.groupby(keys)[["error_max", "diff_max"]].max()
    joined = geometric_means(whole, keys, [name for name in ways if name not in most]).join(most).reset_index()
    caption = "Rows over all ranks, geometric mean over seeds (maxima: greatest)"
    if len(joined) > MOST_SUMMARY_ROWS:
        caption += f"; the {MOST_SUMMARY_ROWS:,} furthest from single device of {count(len(joined), 'row')}"
        joined = joined.sort_values("x_single_device", ascending=False, kind="stable").head(MOST_SUMMARY_ROWS)
    rows = tuple(
        cells(
            row["series"],
            row["facet"],
            row["world_size"],
            row["tensor"],
            *(way(row[name]) for name, way in ways.items()),
        )
        for row in joined.to_dict("records")
    )
    return Table(caption, ("variant", "setting", "world size", "tensor", *ways), rows)
