"""Made-up tables of all kinds, for pages of which the first line must say what is in them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.report.folder import Run, read_folder
from tests.unit.report.synthetic import Shape, write_run

HEALTHY = dict.fromkeys(("single_device", "ring", "zigzag", "bpt", "llama3"), 0.0)
FEW = Shape(("single_device", "ring", "zigzag"), ("bfloat16",), (1, 2, 4), (0, 2), reasons=(), exponents=HEALTHY)
Change = Callable[[pd.DataFrame], pd.DataFrame]


shape = partial(replace, FEW)


def bent(rows: pd.DataFrame, where: "pd.Series[bool]", **values: Any) -> pd.DataFrame:
    """The same rows, with other values where it is wanted."""
    return rows.assign(**{name: rows[name].mask(where, value) for name, value in values.items()})


def times(rows: pd.DataFrame, where: "pd.Series[bool]", factor: float) -> pd.DataFrame:
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


def larger_under_a_window(rows: pd.DataFrame) -> pd.DataFrame:
    rows = logic(rows)
    windowed = times(rows, of(rows, "ring", "dk"), 3.0)
    return pd.concat([rows, windowed.assign(mask="causal,window=10", case_id="w" + rows["case_id"].str[1:])])


def not_finite(rows: pd.DataFrame) -> pd.DataFrame:
    return bent(rows, of(rows, "zigzag", "dv", least=4), nonfinite=7)


def excess(rows: pd.DataFrame) -> pd.DataFrame:
    return times(rows, of(rows, "llama3", "dk", "dv"), 3.0)


def no_number(rows: pd.DataFrame) -> pd.DataFrame:
    endless = float("inf")
    wrong = rows["variant"] != "single_device"
    return bent(rows, wrong, nonfinite=7, error_rel=endless, x_floor=endless, x_single_device=endless)


def kernels(rows: pd.DataFrame) -> pd.DataFrame:
    other = rows.assign(kernel="fused", case_id="k" + rows["case_id"].str[1:])
    return pd.concat([rows, times(other, other["tensor"] == "dk", 2.0)], ignore_index=True)


def drifted(rows: pd.DataFrame) -> pd.DataFrame:
    """ring and zigzag beside one device: ring's out is equal, zigzag's dv beyond the limit, all else half of it."""
    far = (rows["variant"] == "zigzag") & (rows["tensor"] == "dv")
    equal = (rows["variant"] == "ring") & (rows["tensor"] == "out")
    pair = rows["tensor"].notna() & rows["tensor"].ne("delta") & rows["variant"].ne("single_device")
    rows = rows.assign(
        against=rows["variant"].map(lambda name: "" if name == "single_device" else "single_device@1+torch_flash"),
        drift_differ=np.where(pair, np.where(equal, 0, 9), np.nan), drift_rel=np.where(far, 3e-3, 1e-3),
        drift_limit=2e-3, drift_expected=1e-3, drift_nearer=np.where(far, 9.0, 0.0),
    )  # fmt: skip
    return rows.astype({"drift_differ": "Int64"})


def run_of(folder: Path, table: Shape, change: Change | None = None, positions: bool = False) -> Run:
    write_run(folder, table, positions)
    if change:
        rows = change(pd.read_parquet(folder / "results"))
        shutil.rmtree(folder / "results")
        rows.to_parquet(folder / "results.parquet")
    return read_folder(folder)
