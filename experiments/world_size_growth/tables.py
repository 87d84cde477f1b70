"""The numbers of README.md and FINDINGS.md, from the published table."""

import pandas as pd

from accuracy.results.table import ALL_RANKS
from accuracy.verdict.growth import Growth, fit_growth
from experiments.published import TENSORS, Tables, chosen, joined, markdown

TABLE = "world_size_growth/nvidia-h200"
RINGS, INDEX = ["ring", "zigzag", "llama3_ring"], ("variant", "tensor", "world_size")


def blocks(tables: Tables) -> dict[str, str]:
    rows = chosen(tables.rows(TABLE), tensor=TENSORS)
    here = rows[(rows["dtype"] == "bfloat16") & (rows["world_size"] > 1)]
    ranks = tables.worst_ranks(TABLE, INDEX, dtype="bfloat16")
    worst, half = ranks["x_single_device"], ranks["half"]
    every = rows[rows["rank"] == ALL_RANKS].groupby(["dtype", *INDEX])["x_single_device"].mean()
    merging = (
        chosen(here[here["rank"] > 0], variant="ring", tensor="out").groupby("world_size")["x_single_device"].mean()
    )
    rank_0 = chosen(here[here["rank"] >= 0], variant="ring", tensor="out", world_size=8).groupby("rank")["error_rms"]
    squares = rank_0.apply(lambda each: (each**2).sum())
    late = every[every.index.get_level_values("world_size") >= 8]
    fastest = max(
        _exponent(each.droplevel(["dtype", "variant", "tensor"]))
        for (_, variant, _), each in late.groupby(["dtype", "variant", "tensor"])
        if variant in RINGS
    )
    sums = every["bfloat16", "llama3", "dk"]
    steps = (sums / sums.shift()).loc[[32, 64]]
    rings, llama3 = half.loc[RINGS].drop(1, level="world_size").max(), half["llama3"].drop(1, level="world_size").max()
    return {
        "cases": f"{rows['case_id'].nunique()} measured cases",
        "halves": f"at most {rings:.2f} for rings and {llama3:.2f} for llama3",
        "worst": _grid("", worst),
        "every": _grid("all ranks together", every["bfloat16"]),
        "merging": f"{merging[2]:.2f} at 2 ranks and {merging[64]:.2f} at 64",
        "rank_0": f"{squares[0] / squares.sum():.0%} of out's squared error at 8 ranks",
        "exponent": f"{fastest:.2f}",
        "together": f"from {every['bfloat16', 'ring', 'out', 2]:.2f} times at 2 ranks to {every['bfloat16', 'ring', 'out', 64]:.2f} at 64",
        "law": f"fitted exponent {_exponent(sums):.2f}",
        "late": f"{steps.iloc[0]:.2f} and {steps.iloc[1]:.2f} per doubling",
        "llama3": f"{worst['llama3'].max():.1f} times on the worst rank",
        "nccl": _nccl(tables),
    }


def _grid(title: str, values: "pd.Series[float]") -> str:
    sizes, variants = (2, 8, 64), ("ring", "zigzag", "llama3", "llama3_ring")
    lines = (
        (f"{name}: out, dq, dk, dv", *(joined(values[name].xs(size, level=1)[TENSORS]) for size in sizes))
        for name in variants
    )
    return markdown((title, "W = 2", "8", "64"), lines)


def _exponent(values: "pd.Series[float]") -> float:
    fit = fit_growth(values.items())
    return fit.exponent if isinstance(fit, Growth) else float("nan")


def _nccl(tables: Tables) -> str:
    """ring-flash-attn's llama3, whose dk and dv NCCL adds, beside ours on real ranks."""
    rows = chosen(tables.rows("packages/nvidia-h200-x4"), tensor=["dk", "dv"], kernel="eager", world_size=[2, 4])
    rows = rows.set_index(["variant", "dtype", "world_size", "seed", "tensor", "rank"]).sort_index()
    numbers = rows[["error_max", "error_mean", "error_rel"]]
    theirs, ours = numbers.loc["ring_flash_attn_llama3"], numbers.loc["llama3"]
    worst = rows.loc[("ring_flash_attn_llama3", "bfloat16", 4), "x_single_device"].max()
    equal = int((theirs == ours).all(axis=1).sum())
    return (
        f"{equal} of the {len(theirs)} rows of its dk and dv at 2 and 4 ranks, per rank and over all ranks, in bfloat16,"
        f" float16 and float32, are equal in every digit to our llama3 over the same ranks; the worst of four has"
        f" {worst:.2f} times single device's error in bfloat16"
    )
