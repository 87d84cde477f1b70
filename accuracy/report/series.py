"""Which rows belong on one line, and which lines in one picture?

A series is a variant, with its options, precision, kernel and world where the run holds more than one of
them. A facet holds everything else fixed: dtype, problem, inputs, device. Along a series run the world
size, the seeds, the ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import FORMATS
from accuracy.core.number import count
from accuracy.results.table import OK, TENSORS

SINGLE_DEVICE = "single_device"
MOST_FACETS = 4  # drawn over the world size
MOST_DETAILED_FACETS = 2  # drawn by rank and by token, where a facet takes a dozen charts and more
_SERIES_DETAILS = (*fields.names(fields.PRECISION, fields.KERNEL), "world")
_VARIANT_DETAILS = tuple(name for name in fields.names(fields.VARIANT) if name != "variant")
_ALONG = ("dtype", "world_size", "seed")  # the facet's name, and what runs along a series
_FACET_DETAILS = tuple(
    name for name in fields.names_but(fields.VARIANT, fields.STACK) if name not in (*_SERIES_DETAILS, *_ALONG)
)


@dataclass(frozen=True)
class Facet:
    """rows: measured rows, all ranks and tensors, with the columns `series` and `facet`."""

    slug: str
    label: str
    dtype: str
    rows: pd.DataFrame

    @cached_property
    def whole(self) -> pd.DataFrame:
        """The rows over all ranks together."""
        return self.rows[self.rows["rank"] == -1]

    @cached_property
    def widest(self) -> pd.DataFrame:
        """The rows over all ranks of every series at its own largest world size: bpt and single_device know
        only 1.
        """
        whole = self.whole
        return whole[whole["world_size"] == whole.groupby("series")["world_size"].transform("max")]

    @cached_property
    def series(self) -> list[str]:
        """Labels of the lines, the single-device kernel first."""
        return series_order(self.rows)

    @cached_property
    def tensors(self) -> list[str]:
        """The tensors measured here, in the order of the table's contract."""
        return tensor_order(self.rows["tensor"])

    @cached_property
    def kernels_alone(self) -> bool:
        """Whether nothing but kernels was run once: then they are compared with the floor."""
        return bool((self.rows["variant"] == SINGLE_DEVICE).all())

    @cached_property
    def largest_world(self) -> int:
        """The largest world size measured here."""
        return int(self.rows["world_size"].max())


def with_labels(results: pd.DataFrame) -> pd.DataFrame:
    """The table with the columns `series` and `facet` added: the same text for the same line and picture.

    A series' detail that varies over the run but within no facet (the kernel, where float64 needs another
    one than bfloat16) is said once, in the facet's label.
    """
    every = results.drop_duplicates("case_id")
    cases = every[every["status"] == OK] if (every["status"] == OK).any() else every
    facet_details = _varying(cases, _FACET_DETAILS)
    facet = [fields.label(row, ["dtype", *facet_details]) for row in cases.to_dict("records")]
    inside = {name for _, rows in cases.groupby(facet) for name in _varying(rows, _SERIES_DETAILS)}
    series_details = [name for name in _SERIES_DETAILS if name in inside]
    facet_details += [name for name in _varying(cases, _SERIES_DETAILS) if name not in inside]
    own = {variant: _varying(rows, _VARIANT_DETAILS) for variant, rows in every.groupby("variant")}
    labels = {
        row["case_id"]: (
            fields.label(row, ["variant", *own[row["variant"]], *series_details]),
            fields.label(row, ["dtype", *facet_details]),
        )
        for row in every.to_dict("records")
    }
    return results.assign(
        series=results["case_id"].map(lambda case: labels[case][0]),
        facet=results["case_id"].map(lambda case: labels[case][1]),
    )


def _varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Which of the columns hold more than one value."""
    return [name for name in names if rows[name].nunique(dropna=False) > 1]


def spoken(label: str) -> str:
    """A label inside a sentence: `ring (kernel eager)` for `ring · kernel eager`."""
    first, *details = label.split(" · ")
    return f"{first} ({', '.join(details)})" if details else first


def in_reading_order(labelled: pd.DataFrame) -> pd.DataFrame:
    """Rows by dtype from coarse to fine, then along the case's axes, tensors in the order of the contract; the seeds
    of one number stand together.
    """
    tensors = {name: place for place, name in enumerate(TENSORS)}
    keys = labelled.assign(
        _coarseness=labelled["dtype"].map(lambda dtype: -_unit_roundoff(str(dtype))),
        _tensor=labelled["tensor"].map(lambda name: tensors.get(name, len(tensors))),
    )
    order = ["_coarseness", "facet", "series", "world_size", "_tensor", "rank", "seed", "case_id"]
    return labelled.loc[keys.sort_values(order, kind="stable").index].reset_index(drop=True)


def facets_of(labelled: pd.DataFrame) -> list[Facet]:
    """All facets of measured rows, coarsest dtype first."""
    found = [(str(label), str(rows["dtype"].iloc[0]), rows) for label, rows in labelled.groupby("facet", sort=True)]
    found.sort(key=lambda item: (-_unit_roundoff(item[1]), item[1], item[0]))
    return [Facet(f"f{index}", label, dtype, rows) for index, (label, dtype, rows) in enumerate(found)]


def _unit_roundoff(dtype: str) -> float:
    return FORMATS[dtype].unit_roundoff if dtype in FORMATS else 0.0


def series_order(labelled: pd.DataFrame) -> list[str]:
    """Series labels, single device first, the others by name."""
    pairs = labelled[["variant", "series"]].drop_duplicates()
    keyed = sorted((variant != SINGLE_DEVICE, str(series)) for variant, series in pairs.itertuples(index=False))
    return list(dict.fromkeys(series for _, series in keyed))


def slots_of(labelled: pd.DataFrame) -> dict[str, int]:
    """Every series' slot of colour and marker; the first is the single-device kernel's alone."""
    start = 0 if (labelled["variant"] == SINGLE_DEVICE).any() else 1
    return {label: slot for slot, label in enumerate(series_order(labelled), start)}


def tensor_order(tensors: pd.Series) -> list[str]:
    """Names of the tensors present: the contract's order, unknown ones after."""
    present = set(tensors.dropna().unique())
    return [name for name in TENSORS if name in present] + sorted(present - set(TENSORS))


def omitted_facets(facets: list[Facet], most: int) -> str:
    """A sentence on the facets beyond the first few, which are in the table of rows only."""
    left = facets[most:]
    if not left:
        return ""
    names = ", ".join(facet.label for facet in left[:6]) + (" and others" if len(left) > 6 else "")
    return f"Drawn for {count(most, 'setting')}; the table of all rows also has {names}."
