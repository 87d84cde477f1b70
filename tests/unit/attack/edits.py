"""Ways to lose rows, numbers or seeds of a failing run by accident or oversight: name -> what is done to its folder.

The run is `FAILING`: dq of ring at 4 ranks is 30% worse, dv is three times as bad on seed 3 alone, and rank 2's dk is
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
from tests.unit.gate.made_up import MadeUp, Row, case_id, with_error

Rows = pd.DataFrame
Mask = Callable[[Rows], "pd.Series[bool]"]
SEED, RANK = 3, 2
BAD_CASE = case_id("ring", "bfloat16", 4, SEED)
FILE = Path("results") / f"{BAD_CASE}.parquet"


def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
    if (variant, size, tensor) == ("ring", 4, "dq"):
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


def bad(*tensors: str, **where: int) -> Mask:
    """The rows of these tensors in the bad cells; where: columns and their values."""
    cell = {"variant": "ring", "world_size": 4, **where}
    return lambda rows: rows["tensor"].isin(tensors) & (rows[[*cell]] == pd.Series(cell)).all(axis=1)


def of(**where: Any) -> Mask:
    ((name, value),) = where.items()
    return lambda rows: rows[name] == value


ALL_BAD = bad("dq", "dk", "dv")
DROPPED: dict[str, Mask] = {  # rows that are not there
    "a tensor": bad("dq"),
    "the rows of all ranks": of(rank=table.ALL_RANKS),
    "the worst rank on 7 of 8 seeds": lambda rows: bad("dk", rank=RANK)(rows) & (rows["seed"] > 0),
    "the bad seed": of(seed=SEED),
    "a world size": of(world_size=4),
    "single device": of(variant="single_device"),
}
MARKED: dict[str, tuple[Mask, dict[str, Any]]] = {  # rows that say something else than the run did
    "unsupported": (ALL_BAD, {"status": table.UNSUPPORTED}),
    "of another seed": (of(seed=SEED), {"seed": 1000}),
    "of another device": (ALL_BAD, {"device": "Other GPU"}),
    "of a larger problem": (lambda rows: rows.index >= 0, {"seqlen": 10**6}),
    "of another case": (ALL_BAD, {"case_id": "another"}),
    "without error": (ALL_BAD, {"error_rel": None}),
}


def marked(rows: Rows, mask: Mask, values: dict[str, Any]) -> Rows:
    rows = rows.copy()
    rows.loc[mask(rows), [*values]] = [*values.values()]
    return rows


ON_ROWS: dict[str, Callable[[Rows], Rows]] = {
    **{f"dropped: {name}": lambda rows, mask=mask: rows[~mask(rows)] for name, mask in DROPPED.items()},
    **{f"marked: {name}": lambda rows, how=how: marked(rows, *how) for name, how in MARKED.items()},
    **{f"column empty: {name}": lambda rows, name=name: rows.assign(**{name: None})
       for name in table.RESULTS_SCHEMA.names},
    **{f"row gone: {place}": lambda rows, place=place: rows.drop(index=rows.index[place])
       for place in range(0, 400, 13)},
    "numbers: smaller": lambda rows: rows.assign(error_rel=rows["error_rel"].where(~ALL_BAD(rows), 1e-4)),
    "numbers: the next one": lambda rows: rows.assign(error_max=np.nextafter(rows["error_max"], 0)),
    "rows twice": lambda rows: pd.concat([rows, rows]),
}  # fmt: skip


def without_case(about: Row, plan: bool) -> Row:
    cases = [case for case in about["cases"] if case != BAD_CASE]
    kept = {case: each for case, each in about["plan"]["cases"].items() if case != BAD_CASE or not plan}
    return about | {"cases": cases, "plan": about["plan"] | {"cases": kept}}


RECORD: dict[str, Callable[[Row], Any]] = {
    "no plan": lambda about: {key: value for key, value in about.items() if key != "plan"},
    "a plan without rows": lambda about: about | {"plan": about["plan"] | {"rows": {}}},
    "the bad case not listed": lambda about: without_case(about, False),
    "the bad case not planned": lambda about: without_case(about, True),
    "not ended": lambda about: about | {"ended": None},
    "another device": lambda about: about | {"fingerprint": about["fingerprint"] | {"device": "Other GPU"}},
}


def on_rows(folder: Path, change: Callable[[Rows], Rows]) -> None:
    """The rows come back in one file."""
    rows = change(pq.read_table(folder / "results").to_pandas()).reindex(columns=table.RESULTS_SCHEMA.names)
    shutil.rmtree(folder / "results")
    (folder / "results").mkdir()
    written = pa.Table.from_pandas(rows, table.RESULTS_SCHEMA, preserve_index=False)
    pq.write_table(written, folder / "results" / "a.parquet")


def on_record(folder: Path, change: Callable[[Row], Any]) -> None:
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(change(about)))


EDITS: dict[str, Callable[[Path], object]] = {
    **{name: lambda folder, change=change: on_rows(folder, change) for name, change in ON_ROWS.items()},
    **{f"record: {name}": lambda folder, change=change: on_record(folder, change) for name, change in RECORD.items()},
    "record: gone": lambda folder: (folder / "run.json").unlink(),
    "table: gone": lambda folder: (folder / FILE).unlink(),
    "table: half of it": lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:3000]),
    "table: twice its file": lambda folder: shutil.copy(folder / FILE, folder / "results" / "more.parquet"),
}
