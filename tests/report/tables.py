"""Made-up tables of all kinds, and what the first line of a page on each must say."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from accuracy.report.folder import Run, read_folder
from tests.report.synthetic import Shape, write_run

HEALTHY = dict.fromkeys(("single_device", "ring", "zigzag", "bpt", "llama3"), 0.0)
FEW = Shape(("single_device", "ring", "zigzag"), ("bfloat16",), (1, 2, 4), reasons=(), exponents=HEALTHY)
Change = Callable[[pd.DataFrame], pd.DataFrame]


def shape(**changes: object) -> Shape:
    return Shape(**{**FEW.__dict__, **changes})  # type: ignore[arg-type]


def times(rows: pd.DataFrame, where: "pd.Series[bool]", factor: float) -> pd.DataFrame:
    """The same rows, with so many times the error where it is wanted."""
    rows = rows.copy()
    names = ["error_rel", "error_max", "error_mean", "error_rms", "x_floor", "x_single_device"]
    rows.loc[where, names] *= factor
    return rows


def logic(rows: pd.DataFrame) -> pd.DataFrame:
    """dk of ring is wrong by half in every dtype, from two ranks on, most on rank 3."""
    wrong = (rows["variant"] == "ring") & (rows["tensor"] == "dk") & (rows["world_size"] > 1)
    single = rows.loc[wrong, "single_device_rel"]
    rows = rows.copy()
    rows.loc[wrong, "error_rel"] = 0.5 + 0.3 * (rows.loc[wrong, "rank"] == 3)
    rows.loc[wrong, "x_single_device"] = rows.loc[wrong, "error_rel"] / single
    return rows


def logic_of_single_device(rows: pd.DataFrame) -> pd.DataFrame:
    """out of single device is wrong by half in every dtype, where a ring is healthy."""
    wrong = (rows["variant"] == "single_device") & (rows["tensor"] == "out")
    found = {"error_rel": 0.5, "single_device_rel": 0.5, "x_floor": 0.5 / rows["floor_rel"]}
    return rows.assign(**{name: rows[name].mask(wrong, value) for name, value in found.items()})


def not_finite(rows: pd.DataFrame) -> pd.DataFrame:
    wrong = (rows["variant"] == "zigzag") & (rows["tensor"] == "dv") & (rows["world_size"] == 4)
    rows = rows.copy()
    rows.loc[wrong, "nonfinite"] = 7
    return rows


def excess(rows: pd.DataFrame) -> pd.DataFrame:
    return times(
        rows, (rows["variant"] == "llama3") & rows["tensor"].isin(["dk", "dv"]) & (rows["world_size"] > 1), 3.0
    )


def two_policies(rows: pd.DataFrame) -> pd.DataFrame:
    """ring again under another policy, three times as far off."""
    ring = rows[rows["variant"] == "ring"]
    other = ring.assign(precision="lse=bfloat16", case_id="p" + ring["case_id"].str[1:])
    return pd.concat([rows, times(other, other["world_size"] > 1, 3.0)], ignore_index=True)


def two_policies_alike(rows: pd.DataFrame) -> pd.DataFrame:
    """ring again under another policy, as far off."""
    ring = rows[rows["variant"] == "ring"]
    other = ring.assign(precision="lse=bfloat16", case_id="p" + ring["case_id"].str[1:])
    return pd.concat([rows, other], ignore_index=True)


def lse_further(rows: pd.DataFrame) -> pd.DataFrame:
    """lse of zigzag is a quarter further off at four ranks: no more than its merges explain."""
    wrong = (rows["variant"] == "zigzag") & (rows["tensor"] == "lse") & (rows["world_size"] == 4)
    return times(rows, wrong & (rows["dtype"] == "bfloat16"), 1.25)


def no_number(rows: pd.DataFrame) -> pd.DataFrame:
    """No tensor of any variant but single device is finite."""
    wrong = rows["variant"] != "single_device"
    rows = rows.copy()
    rows.loc[wrong, "nonfinite"] = 7
    rows.loc[wrong, ["error_rel", "x_floor", "x_single_device"]] = float("inf")
    return rows


def endless(rows: pd.DataFrame) -> pd.DataFrame:
    """Single device's lse is exact, ring's is not."""
    rows = rows.copy()
    lse, ring = rows["tensor"] == "lse", rows["variant"] == "ring"
    rows.loc[lse, "single_device_rel"] = 0.0
    rows.loc[lse & ring, "x_single_device"] = float("inf")
    rows.loc[lse & ~ring, ["error_rel", "x_single_device"]] = float("nan")
    return rows


def many_variants(rows: pd.DataFrame, copies: int = 14) -> pd.DataFrame:
    ring = rows[rows["variant"] == "ring"]
    copies = [
        times(
            ring.assign(variant=f"v{n:03}", case_id=f"{n:03}" + ring["case_id"].str[3:]),
            ring["rank"] > -2,
            1 + n / copies / 10,
        )
        for n in range(copies)
    ]
    return pd.concat([rows, *copies], ignore_index=True)


def kernels(rows: pd.DataFrame) -> pd.DataFrame:
    other = rows.assign(kernel="fused", case_id="k" + rows["case_id"].str[1:])
    return pd.concat([rows, times(other, other["tensor"] == "dk", 2.0)], ignore_index=True)


def run_of(folder: Path, table: Shape, change: Change | None = None) -> Run:
    """The run, its table changed."""
    write_run(folder, table, positions=False)
    if change:
        path = folder / "results"
        rows = change(pd.read_parquet(path))
        shutil.rmtree(path)
        rows.to_parquet(folder / "results.parquet")
    return read_folder(folder)
