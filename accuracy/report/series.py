"""Which rows belong on one line, and which lines in one picture?

A series is a variant, with its options, precision, kernel and world where the run holds more than one of them. A facet
holds everything else fixed: dtype, problem, inputs, device. Along a series run the world size, the seeds, the ranks.
"""

from collections.abc import Sequence

import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.number import geometric_mean
from accuracy.results.table import ALL_TENSORS, OK

SINGLE_DEVICE = "single_device"
_SERIES_DETAILS = fields.names(fields.PRECISION, fields.KERNEL, fields.WORLD)
_VARIANT_DETAILS = tuple(name for name in fields.names(fields.VARIANT) if name != "variant")
_ALONG = ("dtype", "world_size", "seed")  # the facet's name, and what runs along a series
_FACET_DETAILS = tuple(name for name in fields.names_but(fields.VARIANT) if name not in (*_SERIES_DETAILS, *_ALONG))
_UNNAMED = {each.name for each in fields.FIELDS if each.knobs or each.type != "string"}
_FINENESS = {name: -each.unit_roundoff for name, each in DTYPES.items()}


def with_labels(results: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns `series` and `facet` added: the same text for the same line and picture.

    A series' detail that varies over the run but within no facet (the kernel, where float64 needs another one than
    bfloat16) is said once, in the facet's label.
    """
    every = results.drop_duplicates("case_id")
    cases = every[every["status"] == OK] if (every["status"] == OK).any() else every
    facet_details = _telling(cases, ["dtype", *_varying(cases, _FACET_DETAILS)])
    facet = [fields.label(row, facet_details) for row in cases.to_dict("records")]
    inside = {name for _, rows in cases.groupby(facet) for name in _varying(rows, _SERIES_DETAILS)}
    series_details = [name for name in _SERIES_DETAILS if name in inside]
    facet_details += [name for name in _varying(cases, _SERIES_DETAILS) if name not in inside]
    own = {variant: _varying(rows, _VARIANT_DETAILS) for variant, rows in every.groupby("variant")}
    series_of, facet_of = {}, {}
    for row in every.to_dict("records"):
        series_of[row["case_id"]] = fields.label(row, ["variant", *own[row["variant"]], *series_details])
        facet_of[row["case_id"]] = fields.label(row, facet_details)
    return results.assign(series=results["case_id"].map(series_of), facet=results["case_id"].map(facet_of))


def _telling(cases: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """The names without numbers and options, from the last on, that tell apart nothing which the others do not."""
    texts, told = cases[[*names]].astype("string").fillna(""), [*names]
    for name in [each for each in reversed(names) if each in _UNNAMED]:
        rest = [each for each in told if each != name]
        told = rest if len(texts[rest].drop_duplicates()) == len(texts[told].drop_duplicates()) else told
    return told


def _varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    return [name for name in names if rows[name].nunique(dropna=False) > 1]


def in_reading_order(labelled: pd.DataFrame) -> pd.DataFrame:
    """Rows by dtype from coarse to fine, then along the case's axes, tensors in the order of the contract; the seeds
    of one number stand together."""
    tensors = {name: place for place, name in enumerate(ALL_TENSORS)}
    keys = labelled.assign(_fineness=labelled["dtype"].map(_FINENESS), _tensor=labelled["tensor"].map(tensors))
    order = ["_fineness", "facet", "series", "world_size", "_tensor", "rank", "seed", "case_id"]
    return labelled.loc[keys.sort_values(order, kind="stable").index].reset_index(drop=True)


def geometric_means(rows: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Of columns, by the values of the keys, sorted; rows that lack one of these are left out."""
    groups = rows.groupby(list(keys))
    index, numbers = groups.size().index, groups.ngroup().tolist()
    found = {}
    for name in columns:
        values: list[list[float]] = [[] for _ in range(len(index) + 1)]  # the last: of rows in no group, -1
        for number, value in zip(numbers, rows[name].tolist(), strict=True):
            values[number].append(value)
        found[name] = list(map(geometric_mean, values[:-1]))
    return pd.DataFrame(found, index, dtype="float64")
