"""From rows to cells: all seeds of one tensor of one setting, over all ranks.

A cell's first number per seed is y = ln(error / denominator), errors as relative Frobenius norms. The denominator is
single device's error on the same inputs, so that a seed's luck cancels; at least the dtype's floor and the reference's
own error, below which no two implementations can be told apart. The single-device variant's denominator is the floor.
A kernel that got worse hides in y, as both sides have it: `more` has the error over the floor alone, and what a norm
over all ranks does not show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.probes import PROBES, REFERENCE_ERROR
from accuracy.results import portable
from accuracy.results.run_table import RunTable
from accuracy.results.table import ALL_RANKS, UNSUPPORTED

KEYS = (*fields.names_but(fields.SEED, fields.DEVICE, fields.STACK), "tensor")
ALWAYS_NAMED = ("variant", "dtype", "world_size", "tensor")
SINGLE_DEVICE = "single_device"
FLOOR, RANK, LARGEST, BIAS, GAIN = "floor", "rank", "largest", "bias", "gain"
EXACT = ("error_rel", "error_max", "error_bias", "error_gain")  # of every rank: equal in two identical runs

Key = tuple[Any, ...]
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Cell:
    """y: by seed. error: geometric mean over seeds. Largest over the seeds: rank_ratio on one rank,
    max_ratio of maxima (NaN: single device's is unknown). nonfinite: how many values are not finite.

    more: by seed, in floors: FLOOR ln of the error, LARGEST ln of the largest; BIAS, GAIN sizes of the signed mean and
    of the factor; RANK: ln of the worst rank's error over its denominator. ranks: each rank's, geometric mean over
    seeds. exact: EXACT by rank and of all ranks. rules: what the portable rules judge, see `portable`."""

    key: Key
    y: dict[int, float]
    error: float
    rank_ratio: float
    max_ratio: float
    nonfinite: int
    more: Mapping[str, BySeed] = field(default_factory=dict)
    ranks: Mapping[int, float] = field(default_factory=dict)
    exact: Mapping[int, np.ndarray] = field(default_factory=dict)
    rules: portable.Ratios | None = None

    @property
    def seeds(self) -> list[int]:
        """Measured seeds, ascending."""
        return sorted(self.y)

    @property
    def ratio(self) -> float:
        """Geometric mean over the seeds of the error over the denominator."""
        return float(np.exp(np.mean(list(self.y.values()))))

    @property
    def floors(self) -> float:
        """Geometric mean over the seeds of the error over the rounding floor."""
        return float(np.exp(np.mean(list(self.more.get(FLOOR, self.y).values()))))

    def values(self, seeds: list[int] | None = None) -> np.ndarray:
        """y of the seeds, all by default: (len(seeds),)."""
        return np.array([self.y[seed] for seed in (self.seeds if seeds is None else seeds)])

    def get(self, name: str) -> Any:
        """An entry of the key, `dtype`."""
        return self.key[KEYS.index(name)]

    def only(self, seeds: list[int]) -> "Cell":
        """With these seeds' numbers; all else is left."""
        more = {name: {seed: values[seed] for seed in seeds if seed in values} for name, values in self.more.items()}
        exact = {seed: self.exact[seed] for seed in seeds if seed in self.exact}
        return replace(self, y={seed: self.y[seed] for seed in seeds}, more=more, exact=exact)

    def joined(self, other: "Cell") -> "Cell":
        """With the other's seeds; all else of it is left."""
        more = {name: {**values, **other.more.get(name, {})} for name, values in self.more.items()}
        return replace(self, y={**self.y, **other.y}, more=more, exact={**self.exact, **other.exact})

    def equals(self, other: "Cell") -> bool:
        """Whether every error of the common seeds is the other's, to the last bit, in the columns that both have."""
        return set(self.exact) <= set(other.exact) and all(
            _same(numbers, other.exact[seed]) for seed, numbers in self.exact.items()
        )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    both = ~(np.isnan(one).all(axis=0) | np.isnan(other).all(axis=0))
    return bool(both[0]) and np.array_equal(one[:, both], other[:, both], equal_nan=True)


def measured(evidence: RunTable) -> dict[Key, Cell]:
    """Every cell that has numbers, by key; inputs whose exact answer is known are for the verdicts alone."""
    rows = evidence.results
    rows = rows[rows["tensor"].notna() & (rows["status"] != UNSUPPORTED) & ~rows["inputs"].isin(list(PROBES))]
    number = rows.groupby(list(KEYS), sort=False, dropna=False).ngroup()
    rows = rows.assign(number=number, **_numbers(rows)).sort_values(["number", "seed", "rank"], kind="stable")
    borders = np.flatnonzero(rows["number"].to_numpy()[1:] != rows["number"].to_numpy()[:-1]) + 1
    begins = [0, *borders.tolist()] if len(rows) else []
    keys = rows.iloc[begins][list(KEYS)].itertuples(index=False, name=None)
    columns = {name: rows[name].to_numpy() for name in _COLUMNS if name in rows}
    found = {}
    for key, begin, end in zip(keys, begins, [*begins, len(rows)][1:], strict=True):
        mine = {name: values[begin:end] for name, values in columns.items()}
        if (mine["rank"] == ALL_RANKS).any():
            found[key] = _cell(key, mine)
    return found


_COLUMNS = (
    "seed", "rank", "times", "floors", "largest", "bias", "gain", "max_times", "bad", *portable.COLUMNS, *EXACT,
)  # fmt: skip


def _numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """Of each row, what its cell is made of."""
    floor = np.maximum(rows["floor_rel"], REFERENCE_ERROR)
    denominator = np.where(rows["variant"] == SINGLE_DEVICE, floor, np.maximum(rows["single_device_rel"], floor))
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (rows["error_rms"] / rows["error_rel"]).replace(np.inf, 0.0).fillna(0.0)  # the reference's size
        max_times = rows["error_max"] / rows["single_device_max"].clip(lower=REFERENCE_ERROR * scale)
        largest: pd.Series = (rows["error_max"] / scale).where(scale > 0, 0.0).clip(lower=REFERENCE_ERROR) / floor
        bias: pd.Series = (rows["error_bias"].abs() / scale).where(scale > 0, rows["error_bias"].abs()) / floor
    infinite = (~np.isfinite(rows["error_rel"])).astype("float64")  # has one value at least that is not finite
    times: pd.Series = rows["error_rel"].clip(lower=REFERENCE_ERROR) / denominator
    return {
        "times": times,
        "max_times": max_times,
        "floors": rows["error_rel"].clip(lower=REFERENCE_ERROR) / floor,
        "largest": largest,
        "bias": bias,
        "gain": rows["error_gain"].abs() / floor,
        "bad": rows["nonfinite"].fillna(0).clip(lower=infinite),
        **portable.columns(rows, times, max_times, denominator),
    }


def _cell(key: Key, rows: Mapping[str, np.ndarray]) -> Cell:
    """rows: of the cell, by seed and rank."""
    whole = rows["rank"] == ALL_RANKS
    good = whole & (rows["bad"] == 0)
    seeds = rows["seed"][good].astype(int).tolist()
    alone, one_rank = (
        key[KEYS.index(name)] == value for name, value in (("variant", SINGLE_DEVICE), ("world_size", 1))
    )

    def by_seed(values: np.ndarray) -> dict[int, float]:
        return {seed: float(value) for seed, value in zip(seeds, values, strict=True) if np.isfinite(value)}

    single = ~whole & np.isin(rows["seed"], seeds)
    worst_rank = [rows["times"][single & (rows["seed"] == seed)].max(initial=0.0) for seed in seeds]
    with np.errstate(divide="ignore", invalid="ignore"):
        more = {
            FLOOR: {} if alone else by_seed(np.log(rows["floors"][good])),
            RANK: {} if one_rank else by_seed(np.log(worst_rank)),
            LARGEST: by_seed(np.log(rows["largest"][good])),
            BIAS: by_seed(rows["bias"][good]),
            GAIN: by_seed(rows["gain"][good]),
        }
        ranks = {int(rank): float(np.exp(np.log(rows["times"][single & (rows["rank"] == rank)]).mean()))
                 for rank in np.unique(rows["rank"][single])}  # fmt: skip
    error = np.maximum(rows["error_rel"][good], REFERENCE_ERROR)
    exact = np.stack([rows[name].astype("float64") for name in EXACT if name in rows], axis=1)
    return Cell(
        key=key,
        y=dict(zip(seeds, np.log(rows["times"][good]).astype(float).tolist(), strict=True)),
        error=float(np.exp(np.log(error).mean())) if seeds else np.inf,
        rank_ratio=1.0 if alone else float(rows["times"].max()),
        max_ratio=float(rows["max_times"][good].max()) if seeds else np.nan,
        nonfinite=int(rows["bad"][whole].sum()),
        more={name: values for name, values in more.items() if values},
        ranks=ranks,
        exact={seed: exact[rows["seed"] == seed] for seed in seeds},
        rules=portable.ratios(rows, good),
    )


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
    rows = evidence.results.drop_duplicates("case_id")[["case_id", "variant", "dtype", "world_size", "seed"]]
    return {
        str(case): f"{variant} {dtype} W={size} seed {seed}"
        for case, variant, dtype, size, seed in rows.itertuples(index=False, name=None)
    }
