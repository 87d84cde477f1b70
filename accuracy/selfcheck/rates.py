"""From the verdicts of planted faults and healthy variants to two rates. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.label import NOT_MEASURED, ROUNDING

SIXTEEN_BIT_SUMS = ("llama3", ("dk", "dv"))
"""No false alarm: its reduce-scatter adds in the inputs' dtype hop by hop, and the verdict says that it rounds more."""


@dataclass(frozen=True)
class Detection:
    """What was said of one planted fault. missed: tensors that did not get their label."""

    fault: str
    expected: Mapping[str, str]
    found: Mapping[str, tuple[str, ...]]
    missed: tuple[str, ...]


@dataclass(frozen=True)
class FalseAlarms:
    """combinations: (variant, dtype, world size, tensor, seed, inputs) that were judged healthy or not; alarms: the
    verdicts that were not `rounding`."""

    combinations: int
    alarms: pd.DataFrame
    alarmed: int


def detection(fault: str, expected: Mapping[str, str], verdicts: pd.DataFrame) -> Detection:
    """A tensor that is to be `rounding` must be so everywhere; any other label must appear in some dtype and world."""
    mine = verdicts[(verdicts["variant"] == fault) & (verdicts["label"] != NOT_MEASURED)]
    found = {
        str(tensor): tuple(sorted(set(rows["label"]) - {ROUNDING})) or (ROUNDING,)
        for tensor, rows in mine.groupby("tensor")
    }
    missed = tuple(tensor for tensor, label in expected.items() if label not in found.get(tensor, ()))
    return Detection(fault, expected, found, missed)


def false_alarms(names: Iterable[str], verdicts: pd.DataFrame, results: pd.DataFrame) -> FalseAlarms:
    """Of the healthy variants: every measured combination, and the verdicts that call one faulty."""
    variant, tensors = SIXTEEN_BIT_SUMS
    key = ["variant", "dtype", "world_size", "tensor"]
    mine = verdicts[verdicts["variant"].isin(list(names)) & (verdicts["label"] != NOT_MEASURED)]
    mine = mine[~((mine["variant"] == variant) & mine["tensor"].isin(tensors))]
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].notna() & results["error_rel"].notna()]
    rows = rows.drop_duplicates([*key, "seed", "inputs"])[key]
    alarms = mine[mine["label"] != ROUNDING]
    return FalseAlarms(len(rows.merge(mine[key])), alarms, len(rows.merge(alarms[key])))
