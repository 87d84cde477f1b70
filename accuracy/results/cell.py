"""From rows to cells: all seeds of one tensor of one setting, over all ranks.

A cell's first number per seed is y = ln(error / denominator), errors as relative Frobenius norms. The denominator is
single device's error on the same inputs, so that a seed's luck cancels; at least the dtype's floor and the reference's
own error, below which no two implementations can be told apart. The single-device variant's denominator is the floor.
A kernel that got worse hides in y, as both sides have it: `more` has the error over the floor alone, and what a norm
over all ranks does not show.

The portable rules (`accuracy.gate.rules`) allow more where condition numbers are recorded: roundings of the unit
roundoff u move a result by about u (C + C_softmax), C the larger of condition_sum and condition_rounding. A healthy
schedule may be off so much where a single device that joins nothing is not: partials that cancel, as on attention
sinks, may be larger than their sum. Gaussian partials are not, so there single device's error alone is the measure.
A kernel that got worse on both sides is held to an absolute bound: `rounding_band` (8 u in 16 bits, 1000 u else) times
C + C_softmax, and for Gaussian inputs without them the band itself, which healthy variants fill to a quarter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import FORMATS, PROBES, REFERENCE_ERROR, effective_dtype, rounding_band
from accuracy.core.quantisation import unit_roundoff
from accuracy.results.run_table import RunTable
from accuracy.results.table import ALL_RANKS, UNSUPPORTED

KEYS = (*fields.names_but(fields.SEED, fields.DEVICE), "tensor")
ALWAYS_NAMED = ("variant", "dtype", "world_size", "tensor")
SINGLE_DEVICE = "single_device"
INDEPENDENT = "gaussian"
FLOOR, RANK, LARGEST, BIAS, GAIN = "floor", "rank", "largest", "bias", "gain"
EXACT = ("error_rel", "error_max", "error_bias", "error_gain")  # of every rank: equal in two identical runs
EFFECT = math.log(1.05)  # a smaller rise of y is no regression, however sure: half of what must be caught (10%)

Key = tuple[Any, ...]
BySeed = Mapping[int, float]


class Ratios(NamedTuple):
    """What the portable rules judge. conditioned: whether condition numbers were recorded. The error over what is
    explained: all_ranks, geometric mean over the seeds; one_rank, largest, the largest of all. band: the error over its
    absolute bound, NaN where it has none."""

    conditioned: bool
    all_ranks: float
    one_rank: float
    largest: float
    band: float


@dataclass(frozen=True)
class Cell:
    """y: by seed. error: geometric mean over seeds. Largest over the seeds: rank_ratio on one rank,
    max_ratio of maxima (NaN: single device's is unknown). nonfinite: how many values are not finite.

    more: by seed, in floors: FLOOR ln of the error, LARGEST ln of the largest; BIAS, GAIN sizes of the signed mean and
    of the factor; RANK: ln of the worst rank's error over its denominator. ranks: each rank's, geometric mean over
    seeds. exact: EXACT by rank and of all ranks."""

    key: Key
    y: dict[int, float]
    error: float
    rank_ratio: float
    max_ratio: float
    nonfinite: int
    more: Mapping[str, BySeed] = field(default_factory=dict)
    ranks: Mapping[int, float] = field(default_factory=dict)
    exact: Mapping[int, np.ndarray] = field(default_factory=dict)
    rules: Ratios | None = None

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

    def values(self) -> np.ndarray:
        """y of all seeds: (len(seeds),)."""
        return np.array([self.y[seed] for seed in self.seeds])

    def measure(self, name: str) -> BySeed:
        """By seed, an entry of `more`; "": y."""
        return self.more.get(name, {}) if name else self.y

    def get(self, name: str) -> Any:
        """An entry of the key, `dtype`."""
        return self.key[KEYS.index(name)]

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
    keys = rows.drop_duplicates("number")[list(KEYS)].itertuples(index=False, name=None)
    columns = {name: rows[name].to_numpy() for name in _COLUMNS if name in rows}
    borders = np.flatnonzero(np.diff(rows["number"].to_numpy())) + 1
    found = {}
    for key, own in zip(keys, np.split(np.arange(len(rows)), borders), strict=False):  # without rows no key
        each = {name: values[own[0] : own[-1] + 1] for name, values in columns.items()}
        if (each["rank"] == ALL_RANKS).any():
            found[key] = _cell(key, each)
    return found


_COLUMNS = (
    "seed", "rank", "times", "floors", "largest", "bias", "gain", "max_times", "bad", "conditioned", "excused",
    "excused_max", "band", *EXACT,
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
    error = rows["error_rel"].clip(lower=REFERENCE_ERROR)
    condition = np.fmax(rows["condition_sum"], rows["condition_rounding"]) + rows["condition_softmax"].fillna(0.0)
    recorded, independent = condition.notna(), rows["inputs"] == INDEPENDENT
    kinds = list(rows[["tensor", "dtype", "kernel", "kernel_options"]].astype(str).itertuples(index=False, name=None))
    roundings = {kind: _roundoff_and_band(*kind) for kind in {*kinds}}
    unit, band = np.array([roundings[kind] for kind in kinds], dtype="float64").reshape(-1, 2).T
    excuse = np.fmax(1.0, (unit * condition / denominator).where(recorded & ~independent))
    explained = condition.clip(lower=1.0).where(recorded, np.where(independent, 1.0, np.nan))
    return {
        "times": error / denominator,
        "max_times": max_times,
        "floors": error / floor,
        "largest": largest,
        "bias": bias,
        "gain": rows["error_gain"].abs() / floor,
        "bad": rows["nonfinite"].fillna(0).clip(lower=infinite),
        "conditioned": recorded,
        "excused": error / denominator / excuse,
        "excused_max": max_times / excuse,
        "band": rows["error_rel"] / (band * explained),
    }


def _roundoff_and_band(tensor: str, dtype: str, kernel: str, options: str) -> tuple[float, float]:
    """Of a kernel in 8 bits they are those of 8 bits, whatever the dtype; NaN of a dtype without a known format."""
    form, quantised = FORMATS.get(effective_dtype(tensor, dtype)), unit_roundoff(kernel, options)
    if form is None:
        return math.nan, math.nan
    return max(form.unit_roundoff, quantised), max(rounding_band(tensor, dtype), 8 * quantised)


def _cell(key: Key, rows: Mapping[str, np.ndarray]) -> Cell:
    """rows: of the cell, by seed and rank."""
    of_all = rows["rank"] == ALL_RANKS
    good = of_all & (rows["bad"] == 0)
    seeds = rows["seed"][good].astype(int).tolist()
    alone = key[KEYS.index("variant")] == SINGLE_DEVICE
    single = ~of_all & np.isin(rows["seed"], seeds)
    exact = np.stack([rows[name].astype("float64") for name in EXACT if name in rows], axis=1)

    def by_seed(values: np.ndarray) -> dict[int, float]:
        return {seed: float(value) for seed, value in zip(seeds, values, strict=True) if np.isfinite(value)}

    def mean(values: np.ndarray) -> float:
        return float(np.exp(np.log(values).mean())) if len(values) else np.inf

    with np.errstate(divide="ignore", invalid="ignore"):
        more = {LARGEST: by_seed(np.log(rows["largest"][good]))}
        more |= {name: by_seed(rows[name][good]) for name in (BIAS, GAIN)}
        if not alone:
            more[FLOOR] = by_seed(np.log(rows["floors"][good]))
        if key[KEYS.index("world_size")] != 1:
            worst = [rows["times"][single & (rows["seed"] == seed)].max(initial=0.0) for seed in seeds]
            more[RANK] = by_seed(np.log(worst))
        ranks = {int(rank): mean(rows["times"][single & (rows["rank"] == rank)]) for rank in {*rows["rank"][single]}}
        rules = Ratios(
            conditioned=bool(rows["conditioned"][good].all()),
            all_ranks=mean(rows["excused"][good]),
            one_rank=float(rows["excused"].max()),
            largest=float(rows["excused_max"][good].max(initial=-np.inf)),
            band=mean(rows["band"][good]),
        )
    return Cell(
        key=key,
        y=dict(zip(seeds, np.log(rows["times"][good]).astype(float).tolist(), strict=True)),
        error=mean(np.maximum(rows["error_rel"][good], REFERENCE_ERROR)),
        rank_ratio=1.0 if alone else float(rows["times"].max()),
        max_ratio=float(rows["max_times"][good].max()) if seeds else np.nan,
        nonfinite=int(rows["bad"][of_all].sum()),
        more={name: values for name, values in more.items() if values},
        ranks=dict(sorted(ranks.items())),
        exact={seed: exact[rows["seed"] == seed] for seed in seeds},
        rules=rules if seeds else None,
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
