"""Made-up tables of all kinds, for pages of which the first line must say what is in them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.report.folder import Run, read_folder
from tests.unit.report.synthetic import Shape, write_run

HEALTHY = dict.fromkeys(("single_device", "ring", "zigzag", "bpt", "llama3"), 0.0)
FEW = Shape(("single_device", "ring", "zigzag"), ("bfloat16",), (1, 2, 4), (0, 2), reasons=(), exponents=HEALTHY)
Change = Callable[[pd.DataFrame], pd.DataFrame]


def shape(**changes: object) -> Shape:
    return Shape(**{**FEW.__dict__, **changes})  # type: ignore[arg-type]


def bent(rows: pd.DataFrame, where: "pd.Series[bool]", **values: Any) -> pd.DataFrame:
    """The same rows, with other values where it is wanted."""
    return rows.assign(**{name: rows[name].mask(where, value) for name, value in values.items()})


def times(rows: pd.DataFrame, where: "pd.Series[bool]", factor: float) -> pd.DataFrame:
    """The same rows, with so many times the error where it is wanted."""
    names = ("error_rel", "error_max", "error_mean", "error_rms", "x_floor", "x_single_device")
    return bent(rows, where, **{name: rows[name] * factor for name in names})


def of(rows: pd.DataFrame, variant: str, *tensors: str, least: int = 2) -> "pd.Series[bool]":
    """Where a variant's tensors are, from so many ranks on."""
    return (rows["variant"] == variant) & rows["tensor"].isin(tensors) & (rows["world_size"] >= least)


def logic(rows: pd.DataFrame, least: int = 2) -> pd.DataFrame:
    """dk of ring is wrong by half in every dtype, from so many ranks on, most on rank 3."""
    error = 0.5 + 0.3 * (rows["rank"] == 3)
    return bent(
        rows, of(rows, "ring", "dk", least=least), error_rel=error, x_single_device=error / rows["single_device_rel"]
    )


def logic_of_single_device(rows: pd.DataFrame) -> pd.DataFrame:
    """out of single device is wrong by half in every dtype, where a ring is healthy."""
    wrong = of(rows, "single_device", "out", least=1)
    return bent(rows, wrong, error_rel=0.5, single_device_rel=0.5, x_floor=0.5 / rows["floor_rel"])


def not_finite(rows: pd.DataFrame) -> pd.DataFrame:
    return bent(rows, of(rows, "zigzag", "dv", least=4), nonfinite=7)


def excess(rows: pd.DataFrame) -> pd.DataFrame:
    return times(rows, of(rows, "llama3", "dk", "dv"), 3.0)


def two_policies(rows: pd.DataFrame, factor: float = 3.0) -> pd.DataFrame:
    """ring again under another policy, so many times as far off."""
    ring = rows[rows["variant"] == "ring"]
    other = ring.assign(precision="lse=bfloat16", case_id="p" + ring["case_id"].str[1:])
    return pd.concat([rows, times(other, other["world_size"] > 1, factor)], ignore_index=True)


def lse_further(rows: pd.DataFrame) -> pd.DataFrame:
    """lse of zigzag is a quarter further off at four ranks: no more than its merges explain."""
    return times(rows, of(rows, "zigzag", "lse", least=4) & (rows["dtype"] == "bfloat16"), 1.25)


def no_number(rows: pd.DataFrame) -> pd.DataFrame:
    """No tensor of any variant but single device is finite."""
    endless = float("inf")
    wrong = rows["variant"] != "single_device"
    return bent(rows, wrong, nonfinite=7, error_rel=endless, x_floor=endless, x_single_device=endless)


def endless(rows: pd.DataFrame) -> pd.DataFrame:
    """Single device's lse is exact, ring's is not."""
    lse, ring = rows["tensor"] == "lse", rows["variant"] == "ring"
    rows = bent(rows, lse, single_device_rel=0.0)
    rows = bent(rows, lse & ring, x_single_device=float("inf"))
    return bent(rows, lse & ~ring, error_rel=float("nan"), x_single_device=float("nan"))


def many_variants(rows: pd.DataFrame, copies: int = 14) -> pd.DataFrame:
    ring = rows[rows["variant"] == "ring"]
    found = [rows]
    for n in range(copies):
        other = ring.assign(variant=f"v{n:03}", case_id=f"{n:03}" + ring["case_id"].str[3:])
        found.append(times(other, other["rank"] > -2, 1 + n / copies / 10))
    return pd.concat(found, ignore_index=True)


def kernels(rows: pd.DataFrame) -> pd.DataFrame:
    other = rows.assign(kernel="fused", case_id="k" + rows["case_id"].str[1:])
    return pd.concat([rows, times(other, other["tensor"] == "dk", 2.0)], ignore_index=True)


def run_of(folder: Path, table: Shape, change: Change | None = None, positions: bool = False) -> Run:
    """The run, its table changed."""
    write_run(folder, table, positions)
    if change:
        rows = change(pd.read_parquet(folder / "results"))
        shutil.rmtree(folder / "results")
        rows.to_parquet(folder / "results.parquet")
    return read_folder(folder)
