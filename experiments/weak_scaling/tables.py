"""The numbers of README.md, from the published table."""

import runpy
from pathlib import Path

import pandas as pd

from experiments.published import TENSORS, Tables, cells, chosen, markdown

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
SIZES = [2, 4, 8, 16, 32, 64, 128, 256]


def blocks(tables: Tables) -> dict[str, str]:
    folders = sorted((tables.reports / "weak_scaling").glob("*/results.parquet"))
    if not folders:
        return dict.fromkeys(("state", "growth", "claims"), "Not measured yet.")
    name = f"weak_scaling/{folders[-1].parent.name}"
    rows = chosen(tables.rows(name), status="ok", tensor=TENSORS)
    rows = rows.assign(tokens=rows["seqlen"] // rows["world_size"])
    return {
        "state": f"{rows['case_id'].nunique()} cases on {folders[-1].parent.name}, {rows['seed'].nunique()} seeds.",
        "growth": markdown(("", "tokens a rank", "tensor", "W = 2", *SIZES[1:]), growth(rows)),
        "claims": tables.claims(name),
    }


def growth(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Lines: error over single device's, worst rank (half a 95% interval over seeds) and all ranks together."""
    keys = CLAIMS["SERIES"]
    worst = CLAIMS["over_ranks"](rows, "max", keys).set_index(keys)
    text = worst["x_single_device"].map("{:.2f}".format) + worst["half"].map(" ± {:.2f}".format)
    text += CLAIMS["together"](rows).set_index(keys)["x_single_device"].map(" ({:.2f})".format)
    text = text.droplevel(["precision", "dtype"]).unstack("world_size")
    return [
        (variant, f"{tokens:,}", tensor, *cells(text.loc[variant, tensor, tokens].dropna(), SIZES, "s"))
        for variant, tokens, tensor in sorted(
            {(v, n, t) for v, t, n in text.index}, key=lambda at: (*at[:2], TENSORS.index(at[2]))
        )
    ]
