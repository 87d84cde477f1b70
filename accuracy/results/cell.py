"""From rows to cells: all seeds of one tensor of one setting, over all ranks.

A cell's number per seed is y = ln(error / denominator), errors as relative Frobenius norms. The denominator is single
device's error on the same inputs, so that a seed's luck cancels; at least the dtype's floor and the reference's own
error, below which no two implementations can be told apart. The single-device variant's denominator is the floor, as
a kernel that got worse would otherwise hide in both.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.probes import PROBES, REFERENCE_ERROR
from accuracy.results.run_table import RunTable
from accuracy.results.table import ALL_RANKS, UNSUPPORTED

KEYS = (*fields.names_but(fields.SEED, fields.DEVICE, fields.STACK), "tensor")
ALWAYS_NAMED = ("variant", "dtype", "world_size", "tensor")
SINGLE_DEVICE = "single_device"

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """y: by seed. error: geometric mean over seeds. Largest over the seeds: rank_ratio on one rank,
    max_ratio of maxima (NaN: single device's is unknown). nonfinite: how many values are not finite."""

    key: Key
    y: dict[int, float]
    error: float
    rank_ratio: float
    max_ratio: float
    nonfinite: int

    @property
    def seeds(self) -> list[int]:
        """Measured seeds, ascending."""
        return sorted(self.y)

    @property
    def ratio(self) -> float:
        """Geometric mean over the seeds of the error over the denominator."""
        return float(np.exp(np.mean(list(self.y.values()))))

    def values(self, seeds: list[int] | None = None) -> np.ndarray:
        """y of the seeds, all by default: (len(seeds),)."""
        return np.array([self.y[seed] for seed in (self.seeds if seeds is None else seeds)])

    def get(self, name: str) -> Any:
        """An entry of the key, `dtype`."""
        return self.key[KEYS.index(name)]


def measured(evidence: RunTable) -> dict[Key, Cell]:
    """Every cell that has numbers, by key; inputs whose exact answer is known are for the verdicts alone."""
    rows = evidence.results
    rows = rows[rows["tensor"].notna() & (rows["status"] != UNSUPPORTED) & ~rows["inputs"].isin(list(PROBES))]
    rows = rows.assign(times=_times(rows), max_times=_max_times(rows))
    number = rows.groupby(list(KEYS), sort=False, dropna=False).ngroup()
    worst_rank = rows["times"].groupby(number).max().to_dict()
    whole = rows[rows["rank"] == ALL_RANKS]
    infinite = (~np.isfinite(whole["error_rel"])).astype("float64")  # has one value at least that is not finite
    bad = whole["nonfinite"].fillna(0).clip(lower=infinite).to_numpy()
    largest = whole["max_times"].where(bad == 0).groupby(number[whole.index]).max().to_dict()
    keys = list(whole[list(KEYS)].itertuples(index=False, name=None))
    seeds, y = whole["seed"].to_numpy(int), np.log(whole["times"].to_numpy(float))
    errors = np.log(np.maximum(whole["error_rel"].to_numpy(float), REFERENCE_ERROR))
    places, found = number[whole.index].reset_index(drop=True), {}
    for place, index in places.groupby(places, sort=False).indices.items():
        good, key = index[bad[index] == 0], keys[index[0]]
        found[key] = Cell(
            key=key,
            y=dict(zip(seeds[good].tolist(), y[good].tolist(), strict=True)),
            error=float(np.exp(errors[good].mean())) if len(good) else np.inf,
            rank_ratio=1.0 if key[KEYS.index("variant")] == SINGLE_DEVICE else float(worst_rank[place]),
            max_ratio=float(largest[place]),
            nonfinite=int(bad[index].sum()),
        )
    return found


def _times(rows: pd.DataFrame) -> pd.Series:
    floors = np.maximum(rows["floor_rel"], REFERENCE_ERROR)
    denominator = np.where(rows["variant"] == SINGLE_DEVICE, floors, np.maximum(rows["single_device_rel"], floors))
    return rows["error_rel"].clip(lower=REFERENCE_ERROR) / denominator


def _max_times(rows: pd.DataFrame) -> pd.Series:
    """Ratio of the largest errors, single device's held above the reference's own error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (rows["error_rms"] / rows["error_rel"]).replace(np.inf, 0.0).fillna(0.0)
        return rows["error_max"] / rows["single_device_max"].clip(lower=REFERENCE_ERROR * scale)


def varying(keys: list[Key]) -> list[str]:
    """Entries that must be said to tell the cells apart, beside those that always are."""
    frame = pd.DataFrame(keys, columns=list(KEYS))
    several = frame.groupby(list(ALWAYS_NAMED), dropna=False).nunique(dropna=False).gt(1).any()
    return [name for name in KEYS if several.get(name, False)]


def named(key: Key, also: list[str]) -> str:
    """`ring bfloat16 W=4 dq`, and the further entries `also`."""
    values = dict(zip(KEYS, key, strict=True))
    first = f"{values['variant']} {values['dtype']} W={values['world_size']} {values['tensor']}"
    return " ".join([first, *(f"{name}={values[name]}" for name in also if values[name] not in ("", None))])


def without_numbers(evidence: RunTable, status: str) -> dict[str, str]:
    """Reason by case id of the cases that have no numbers: of status unsupported, or failed."""
    rows = evidence.results
    rows = rows[(rows["status"] == status) & rows["tensor"].isna()]
    return dict(zip(rows["case_id"], rows["reason"], strict=True))


def case_names(evidence: RunTable) -> dict[str, str]:
    """What a case is, by its id: `ring bfloat16 W=4 seed 3`."""
    rows = evidence.results.drop_duplicates("case_id").to_dict("records")
    return {
        str(row["case_id"]): f"{row['variant']} {row['dtype']} W={row['world_size']} seed {row['seed']}" for row in rows
    }
