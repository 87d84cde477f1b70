"""How do all rows travel inside the page? Columns as JSON, gzip, base64: no byte of it can end a script element.

What is the same in every row of a case is written once; texts are numbers of a list of the distinct ones. Where there
are too many rows, digits go first, then per-rank rows of the later seeds; rows over all ranks stay to the last.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from accuracy.core.number import count
from accuracy.report.about import command
from accuracy.report.series import SINGLE_DEVICE, facets_of, with_labels
from accuracy.results.table import ALL_RANKS, LOSSES, METRICS, OK

BUDGET_BYTES = 2_600_000  # of base64 text: 50,000 rows fit, and the page stays below 3 MB with its charts
COMFORTABLE_BYTES = 950_000  # what rows may cost before they are cut to what a page shows
MOST_POSITION_BYTES = 250_000
MOST_LEGIBLE_WORLD = 16  # ranks whose chunks can be told apart in a line along the sequence
MOST_SETTINGS = 2  # whose positions a published run keeps
WIDEST = 32  # bins joined to one: of the 128 that a case has, 4 are left
WHOLE_DIGITS = 6  # of rows over all ranks always: the page joins their seeds and rounds once, as its tables do
OF_RANKS = ("error_rel", "error_max", "error_mean", "diff_rel", "diff_max", "diff_mean", "x_single_device", "ulp_max",
            "worst_token")  # fmt: skip
_ONLY_WHOLE = [name for name in (*METRICS, *LOSSES, "worst_batch", "worst_head", "worst_dim") if name not in OF_RANKS]
_LINE = ["facet", "series", "world_size", "tensor"]
_OF_POSITIONS = [*_LINE, "token_begin", "token_end", "rank", "error_rms"]
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
    bins, total, comfortable = _positions(profiles, setting), len(results), min(COMFORTABLE_BYTES, budget)
    rounded = "Numbers of single ranks are rounded to {} significant digits; results.parquet has every row and column."
    slim = f"Of single ranks the page has {', '.join(OF_RANKS)}. {rounded.format(3)}"
    firsts = results.drop_duplicates("case_id").to_dict("records")
    commands = {str(row["case_id"]): json.dumps(command(row)) for row in firsts}
    for digits, most in ((WHOLE_DIGITS, comfortable), (4, comfortable), (3, budget)):
        if digits == 3:  # no view of single ranks shows these columns
            columns = [name for name in _ONLY_WHOLE if name in results]
            kept = results[columns].where(results["rank"] == ALL_RANKS)
            results = results.assign(**{name: kept[name] for name in columns})
        encoded = _base64(_pieces(results, digits, commands, bins), most)
        if len(encoded) <= most:
            note = slim if digits == 3 else rounded.format(digits)
            return EmbeddedRows(encoded, total, f"All {count(total, 'row')}. {note}")
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    encoded, keep, left = _base64(_pieces(results, 3, commands, bins)), total, budget - len(_base64([bins]))
    while len(encoded) > budget and keep:
        keep = int(keep * min(0.95, 0.98 * max(left, 0) / len(encoded)))
        encoded = _base64(_pieces(results.loc[sorted(priority[:keep])], 3, commands, bins if keep else ""))
    note = (
        f"This file holds {keep:,} of {count(total, 'row')}: {total - keep:,} were left out to keep it small, "
        f"per-rank rows of the later seeds first. {slim}"
    )
    return EmbeddedRows(encoded, keep, note)


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
    for power in range(WIDEST.bit_length()):
        yield (found := with_wider_bins(profiles, 2**power))
    here = found["facet"] == setting
    yield found[here]
    yield found[here & (found["world_size"] <= MOST_LEGIBLE_WORLD)]


def published_positions(results: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The errors along the sequence that a published run keeps: of its coarsest settings, where chunks are legible."""
    measured = results[(results["status"] == OK) & results["tensor"].notna()]
    shown: list[str] = []
    for facet in facets_of(with_labels(results).loc[measured.index])[:MOST_SETTINGS]:
        rows = facet.rows[facet.rows["case_id"].isin(positions["case_id"])]
        size = chosen_world(rows["world_size"].unique().tolist()) if len(rows) else None
        shown += [*rows.loc[(rows["world_size"] == size) | (rows["variant"] == SINGLE_DEVICE), "case_id"]]
    return positions[positions["case_id"].isin(shown)]


def chosen_world(sizes: Sequence[int]) -> int:
    """The largest world size whose chunks can still be told apart, else the smallest that has chunks at all."""
    legible = [size for size in sizes if 1 < size <= MOST_LEGIBLE_WORLD]
    return int(max(legible) if legible else min([size for size in sizes if size > 1] or sizes))


def with_wider_bins(profiles: pd.DataFrame, bins: int) -> pd.DataFrame:
    """The same lines, so many neighbouring bins of tokens as one: error_rms over all their tokens; rank -1 where they
    are of several."""
    if bins == 1:
        return profiles
    rows = profiles.sort_values([*_LINE, "token_begin"], kind="stable")
    tokens = (rows["token_end"] - rows["token_begin"]).astype("float64")
    rows = rows.assign(bin=rows.groupby(_LINE).cumcount() // bins, tokens=tokens, last=rows["rank"])
    rows["square"] = rows["error_rms"] ** 2 * tokens
    how = {"token_begin": "first", "token_end": "last", "rank": "min", "last": "max", "square": "sum", "tokens": "sum"}
    found = rows.groupby([*_LINE, "bin"], sort=False).agg(how).reset_index()
    one = found["rank"] == found["last"]
    found = found.assign(rank=found["rank"].where(one, -1), error_rms=np.sqrt(found["square"] / found["tokens"]))
    return found[_OF_POSITIONS]


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
