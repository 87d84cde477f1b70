"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines
from accuracy.results.over_ranks import over_ranks

TABLE, SIZES, GRADIENTS = "double_ring/nvidia-h200", [2, 8, 16, 32, 64], ["dq", "dk", "dv"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows, held = tables.rows(TABLE), tables.held(TABLE)
    keys = ("variant", "options", "tensor", "world_size")
    worst = over_ranks(rows[rows["tensor"].isin(GRADIENTS)], "max", keys).set_index(list(keys))["x_single_device"]
    grid = worst.unstack()[SIZES]
    published = {size: grid.loc["double_ring", f"window_ranks={size},window_sums=input"] for size in (2, 8)}
    near = grid.drop(index=[each for each in grid.index if each[1].endswith("=input")])
    (lse,) = tables.claimed(TABLE, "out and lse of the double ring", r"to ([\d.]+)")
    (usp,) = tables.claimed(TABLE, "usp is within 5%", r"to ([\d.]+)")
    return {
        "README.md": [
            Said("{} measured, table in", (tables.cases(TABLE)["ok"],)),
            *lines(
                {
                    "double ring as published, windows of 2 | dq": published[2].loc["dq"],
                    "| dk": published[2].loc["dk"],
                    "| dv": published[2].loc["dv"],
                    "the same, windows of 8 | dv": _cells(published[8].loc["dv"]),
                    "zigzag, usp, and float32 sums | dq, dk, dv": near.drop("single_device").max(),
                }
            ),
            Said("3 of 5 claims hold.", holds=(sum(held), len(held)) == (3, 5)),
            Said("is up to {:.3f} times zigzag's (5% were predicted), and `usp` up to {:.3f} times", (lse, usp)),
        ]
    }


def _cells(values: "pd.Series[float]") -> list[str]:
    return ["" if pd.isna(each) or size == 2 else f"{each:.2f}" for size, each in values.items()]
