"""The numbers of README.md, from the published table."""

import runpy
from pathlib import Path

import pandas as pd

from experiments.published import TENSORS, Tables, cells, chosen, markdown

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
SIZES = [2, 4, 8, 16, 32, 64, 128, 256]


def blocks(tables: Tables) -> dict[str, str]:
    name = "weak_scaling/nvidia-h200-x1"
    rows = chosen(tables.rows(name), status="ok", tensor=TENSORS)
    rows = rows.assign(tokens=rows["seqlen"] // rows["world_size"])
    return {
        "state": f"{rows['case_id'].nunique()} cases on {name.split('/')[1]}, {rows['seed'].nunique()} seeds.",
        **found(rows),
        "floor": markdown(("over the rounding floor", "tokens a rank", *TENSORS), floors(rows)),
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


def found(rows: pd.DataFrame) -> dict[str, str]:
    """te_p2p's out and te_all_gather's dk on the worst rank, at the most ranks that both numbers of tokens have."""
    worst = CLAIMS["over_ranks"](rows, "max", CLAIMS["SERIES"])
    at = worst.set_index(["variant", "tensor", "tokens", "world_size"])["x_single_device"]
    ring, gathered = at["te_p2p", "out"], at["te_all_gather", "dk"]
    whole = CLAIMS["together"](chosen(rows, variant="te_p2p", tensor="out")).set_index(["tokens", "world_size"])
    whole = whole["x_single_device"]
    ring_found = (
        f"out has {ring[2048, 64]:.2f} times single device's error at 64 ranks of 2,048 tokens and {ring[8192, 64]:.2f}"
        f" at 64 of 8,192, {ring[2048, 256]:.2f} at 256 of 2,048"
    )
    others = f"{gathered[2048, 64]:.2f}, {gathered[8192, 64]:.2f} and {gathered[2048, 256]:.2f}"
    together = f"{whole[2048, 64]:.2f}, {whole[8192, 64]:.2f} and {whole[2048, 256]:.2f}"
    return {
        "ring": ring_found,
        "together": together,
        "found": f"TransformerEngine p2p's {ring_found}; all_gather's dk {others}",
    }


def floors(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Lines: error of all ranks together over the rounding floor at the most ranks measured, mean over seeds."""
    most = rows.groupby(["variant", "tokens"])["world_size"].transform("max")
    whole = rows[(rows["rank"] == -1) & (rows["world_size"] == most)]
    means = whole.groupby(["variant", "tokens", "world_size", "tensor"])["x_floor"].mean().unstack("tensor")
    return [
        (f"{variant}, W = {ranks}", f"{tokens:,}", *(f"{line[tensor]:.2f}" for tensor in TENSORS))
        for (variant, tokens, ranks), line in means.iterrows()
    ]
