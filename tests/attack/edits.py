"""Ways to lose rows, numbers or seeds of a failing run by accident or oversight: name -> what is done to its folder.

The run is `failing`: dq of ring at 4 ranks is 30% worse, dv is three times as bad on seed 3 alone, and rank 2's dk is
20 times worse.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.results import table
from accuracy.results.derived import with_derived
from tests.gate.made_up import MadeUp, Row, case_id, with_error

Edit = Callable[[Path], None]
Mask = Callable[[pd.DataFrame], "pd.Series[bool]"]
TENSOR, SEED, RANK = "dq", 3, 2
FILE = Path("results") / f"{case_id('ring', 'bfloat16', 4, SEED)}.parquet"  # of the bad seed


def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
    if (variant, size, tensor) == ("ring", 4, TENSOR):
        return 1.3
    return 3.0 if (variant, size, tensor, seed) == ("ring", 4, "dv", SEED) else 1.0


def one_rank(about: Row, rows: list[Row]) -> list[Row]:
    bad = {"variant": "ring", "tensor": "dk", "rank": RANK, "world_size": 4}
    return [
        with_error(row, row["error_rel"] * 20, row["single_device_rel"]) if bad.items() <= row.items() else row
        for row in rows
    ]


HEALTHY = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2, 4))
FAILING = HEALTHY.but(luck=1, worse=worse, change=one_rank)
EDITS: dict[str, Edit] = {}


def way(name: str) -> Callable[[Edit], Edit]:
    def kept(edit: Edit) -> Edit:
        assert name not in EDITS
        EDITS[name] = edit
        return edit

    return kept


def rows_of(folder: Path) -> pd.DataFrame:
    return pq.read_table(folder / "results").to_pandas()


def write_rows(folder: Path, rows: pd.DataFrame) -> None:
    """In one file."""
    rows = rows.reindex(columns=table.RESULTS_SCHEMA.names)
    shutil.rmtree(folder / "results")
    (folder / "results").mkdir()
    pq.write_table(
        pa.Table.from_pandas(rows, table.RESULTS_SCHEMA, preserve_index=False), folder / "results" / "a.parquet"
    )


def on_rows(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    way(name)(lambda folder: write_rows(folder, change(rows_of(folder))))


def on_record(name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    def edit(folder: Path) -> None:
        about = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(change(about)))

    way(name)(edit)


def cell(rows: pd.DataFrame, tensor: str = TENSOR) -> "pd.Series[bool]":
    return (rows["variant"] == "ring") & (rows["world_size"] == 4) & (rows["tensor"] == tensor)


# Rows that are not there.
DROPPED: dict[str, Mask] = {
    "a tensor": cell,
    "a tensor on 7 of 8 seeds": lambda rows: cell(rows) & (rows["seed"] > 0),
    "a tensor on the bad seed": lambda rows: cell(rows, "dv") & (rows["seed"] == SEED),
    "a tensor of every variant": lambda rows: rows["tensor"] == TENSOR,
    "the rows of all ranks": lambda rows: rows["rank"] == table.ALL_RANKS,
    "the rows of all ranks of the bad cell": lambda rows: cell(rows) & (rows["rank"] == table.ALL_RANKS),
    "the rows of single ranks": lambda rows: rows["rank"] >= 0,
    "the worst rank": lambda rows: cell(rows, "dk") & (rows["rank"] == RANK),
    "the worst rank of every tensor": lambda rows: rows["rank"] == RANK,
    "the worst rank on 7 of 8 seeds": lambda rows: cell(rows, "dk") & (rows["rank"] == RANK) & (rows["seed"] > 0),
    "one row": lambda rows: rows.index == rows.index[cell(rows)][0],
    "the bad seed": lambda rows: rows["seed"] == SEED,
    "the bad seed of the bad variant": lambda rows: (rows["seed"] == SEED) & (rows["variant"] == "ring"),
    "all seeds but one": lambda rows: rows["seed"] > 0,
    "a world size": lambda rows: rows["world_size"] == 4,
    "a variant": lambda rows: rows["variant"] == "ring",
    "single device": lambda rows: rows["variant"] == "single_device",
    "all but single device": lambda rows: rows["variant"] != "single_device",
    "every second row": lambda rows: rows.index % 2 == 1,
    "every row": lambda rows: rows.index >= 0,
    "gradients": lambda rows: rows["tensor"].isin(["dq", "dk", "dv"]),
    "all that is bad": lambda rows: cell(rows) | cell(rows, "dk") | cell(rows, "dv"),
}
for name, mask in DROPPED.items():
    on_rows(f"dropped: {name}", lambda rows, mask=mask: rows[~mask(rows)])

# Rows that say something else than the run did.
BAD_CELLS: Mask = lambda rows: cell(rows) | cell(rows, "dk") | cell(rows, "dv")  # noqa: E731
BUT_ONE: Mask = lambda rows: BAD_CELLS(rows) & (rows["seed"] > 0)  # noqa: E731
NUMBERS = [*table.METRICS, "nonfinite"]


def marked(rows: pd.DataFrame, mask: Mask, **values: Any) -> pd.DataFrame:
    rows = rows.copy()
    for column, value in values.items():
        rows.loc[mask(rows), column] = value
    return rows


MARKED: dict[str, tuple[Mask, dict[str, Any]]] = {
    "unsupported": (BAD_CELLS, {"status": table.UNSUPPORTED}),
    "unsupported on 7 of 8 seeds": (BUT_ONE, {"status": table.UNSUPPORTED}),
    "unsupported, without numbers": (BAD_CELLS, {"status": table.UNSUPPORTED, **dict.fromkeys(NUMBERS)}),
    "failed": (BAD_CELLS, {"status": table.FAILED}),
    "of a probe": (BAD_CELLS, {"inputs": "one_value"}),
    "of another variant": (BAD_CELLS, {"variant": "zigzag"}),
    "of another tensor": (BAD_CELLS, {"tensor": "delta"}),
    "of no tensor": (BAD_CELLS, {"tensor": None}),
    "of another world size": (BAD_CELLS, {"world_size": 8}),
    "of another kernel": (BAD_CELLS, {"kernel": "eager"}),
    "of another seed": (lambda rows: rows["seed"] == SEED, {"seed": 1000}),
    "of another rank": (lambda rows: cell(rows, "dk") & (rows["rank"] == RANK), {"rank": 1}),
    "of another device": (BAD_CELLS, {"device": "Other GPU"}),
    "all of another device": (lambda rows: rows["rank"] > -9, {"device": "Other GPU"}),
    "of other code": (BAD_CELLS, {"code": "0ther"}),
    "one seed of other code": (lambda rows: rows["seed"] == SEED, {"code": "0ther"}),
    "all of other code": (lambda rows: rows["rank"] > -9, {"code": "0ther"}),
    "of another case": (BAD_CELLS, {"case_id": "another"}),
}
for name, (mask, values) in MARKED.items():
    on_rows(f"marked: {name}", lambda rows, mask=mask, values=values: marked(rows, mask, **values))

# Columns without numbers, in the bad cells and everywhere.
EMPTIED = ("error_rel", "error_max", "error_rms", "error_bias", "error_gain", "single_device_rel", "single_device_max",
           "floor_rel", "nonfinite", "status", "seed", "rank", "tensor", "code", "device")  # fmt: skip
for name in EMPTIED:
    on_rows(f"emptied: {name}", lambda rows, name=name: rows.assign(**{name: None}))
for name in ("error_rel", "error_max", "error_bias", "floor_rel"):
    on_rows(f"emptied: {name} of the bad cells", lambda rows, name=name: marked(rows, BAD_CELLS, **{name: None}))


# Rows that are there twice.
def copied(rows: pd.DataFrame, columns: list[str], mask: Mask) -> pd.DataFrame:
    """Numbers of seed 0 in place of other seeds'."""
    keys = ["variant", "world_size", "tensor", "rank"]
    good = rows[rows["seed"] == 0].set_index(keys)[columns]
    own = pd.MultiIndex.from_frame(rows[keys])
    rows, mine = rows.copy(), mask(rows).to_numpy()
    rows.loc[mine, columns] = good.reindex(own).to_numpy()[mine]
    return rows


on_rows("copied: eight times seed 0", lambda rows: copied(rows, list(table.METRICS), lambda rows: rows["seed"] > 0))
on_rows("copied: the bad seed", lambda rows: copied(rows, list(table.METRICS), lambda rows: rows["seed"] == SEED))
on_rows("copied: a tensor of it", lambda rows: copied(
    rows, list(table.METRICS), lambda rows: cell(rows, "dv") & (rows["seed"] == SEED)))  # fmt: skip
on_rows("copied: its errors", lambda rows: copied(
    rows, ["error_rel", "x_single_device", "x_floor"],
    lambda rows: cell(rows, "dv") & (rows["seed"] == SEED)))  # fmt: skip


def twice(rows: pd.DataFrame, first: bool, **values: Any) -> pd.DataFrame:
    """The bad rows with good numbers once more, before or behind their own."""
    bad = rows[BAD_CELLS(rows)]
    good = with_derived(bad.assign(error_rel=bad["single_device_rel"], x_single_device=None, x_floor=None, **values))
    return pd.concat([good, rows] if first else [rows, good])


on_rows("twice: behind", lambda rows: twice(rows, False))
on_rows("twice: before", lambda rows: twice(rows, True))
on_rows("twice: the same rows", lambda rows: pd.concat([rows, rows]))
on_rows("twice: as another case", lambda rows: twice(rows, False, case_id="another"))
on_rows("twice: as a planned case", lambda rows: twice(rows, False, case_id=case_id("ring", "bfloat16", 2, 0)))
way("twice: its file")(lambda folder: shutil.copy(folder / FILE, folder / "results" / "more.parquet"))

# The record.
BAD_CASE = case_id("ring", "bfloat16", 4, SEED)


def without_case(about: dict[str, Any], plan: bool) -> dict[str, Any]:
    cases = [case for case in about["cases"] if case != BAD_CASE]
    kept = {case: each for case, each in about["plan"]["cases"].items() if case != BAD_CASE or not plan}
    return about | {"cases": cases, "plan": about["plan"] | {"cases": kept}}


RECORD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no plan": lambda about: {key: value for key, value in about.items() if key != "plan"},
    "a plan of null": lambda about: about | {"plan": None},
    "a plan that is a list": lambda about: about | {"plan": []},
    "an empty plan": lambda about: about | {"plan": {}},
    "a plan without digest": lambda about: about | {"plan": {k: v for k, v in about["plan"].items() if k != "digest"}},
    "a plan without ends": lambda about: about | {"plan": about["plan"] | {"ends": []}},
    "a plan without cases": lambda about: about | {"plan": about["plan"] | {"cases": {}}},
    "a plan of another device": lambda about: about | {"plan": about["plan"] | {"device": "Other GPU"}},
    "the bad case not listed": lambda about: without_case(about, False),
    "the bad case not planned": lambda about: without_case(about, True),
    "no cases": lambda about: about | {"cases": []},
    "a case more": lambda about: about | {"cases": [*about["cases"], "more"]},
    "not ended": lambda about: about | {"ended": None},
    "another device": lambda about: about | {"fingerprint": about["fingerprint"] | {"device": "Other GPU"}},
    "an earlier version's": lambda about: about | {"schema_version": 1},
    "no object": lambda about: [],
}
for name, change in RECORD.items():
    on_record(f"record: {name}", change)

way("record: gone")(lambda folder: (folder / "run.json").unlink())
way("record: half of it")(lambda folder: (folder / "run.json").write_bytes((folder / "run.json").read_bytes()[:900]))
way("table: gone")(lambda folder: (folder / FILE).unlink())
way("table: folder gone")(lambda folder: shutil.rmtree(folder / "results"))
way("table: half of it")(lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:3000]))


@way("the bad case in neither list, and its rows gone")
def nowhere(folder: Path) -> None:
    EDITS["record: the bad case not planned"](folder)
    write_rows(folder, rows_of(folder).query("case_id != @BAD_CASE"))


@way("numbers that are not finite emptied")
def not_finite(folder: Path) -> None:
    rows = rows_of(folder)
    write_rows(folder, rows.assign(error_rel=np.where(BAD_CELLS(rows), np.nan, rows["error_rel"])))
