"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables
from accuracy.results.over_ranks import over_ranks
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.growth import Growth, fit_growth

TABLE = "world_size_growth/nvidia-h200"
TREE = "accuracy variant=llama3 'variant.llama3.add=[null,tree]', the command beside the numbers; no published table"
TENSORS, RINGS = ["out", "dq", "dk", "dv"], ["ring", "zigzag", "llama3_ring"]
INDEX = ["variant", "tensor", "world_size"]
FOUR = ", ".join(["{:.2f}"] * 4)


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(TABLE)
    rows = rows[rows["tensor"].isin(TENSORS)]
    worst = worst_ranks(rows[rows["dtype"] == "bfloat16"])
    whole = rows[rows["rank"] == ALL_RANKS].groupby(["dtype", *INDEX])["x_single_device"].mean()
    merging = _mean_of_merging_ranks(rows)
    sums = whole["bfloat16", "llama3", "dk"]
    steps = (sums / sums.shift()).loc[[32, 64]]
    rings = worst["x_single_device"].loc[[*RINGS, "striped", "llama3_zigzag"]]
    flat = _exponents(whole, RINGS).round(2).max() <= 0.03
    halves = (worst["half"].loc[RINGS].max(), worst["half"].loc["llama3"].max())
    return {
        "../../README.md": [
            Said(
                "A ring with float32 sums stays at {:.1f} to {:.1f}",
                tuple(worst["x_single_device"].loc["ring"].agg(["min", "max"])),
            ),
        ],
        "../FINDINGS.md": [
            Said("and 2.2 where they are added as a tree", source=TREE),
            Said(
                "within 1.4 times single device's error up to 64 ranks (exponent at most 0.03 from 8 ranks on);",
                holds=flat and rings.max() <= 1.4,
            ),
            Said("reach {:.1f} times on the worst rank,", (worst["x_single_device"].loc["llama3"].max(),)),
            Said("over three seeds is at most {:.2f} for rings and {:.2f} for llama3.", halves),
        ],
        "README.md": [
            Said("stay within 1.4 times single device's error on every rank;", holds=rings.max() <= 1.4),
            Said("llama3's dk and dv reach {:.1f} times on", (worst["x_single_device"].loc["llama3"].max(),)),
            Said("330 measured cases", holds=rows["case_id"].nunique() == 330),
            Said(
                "(half a 95% interval over seeds is at most {:.2f} for rings, {:.2f} for llama3)",
                halves,
            ),
            *_grid(worst["x_single_device"]),
            *_grid(whole["bfloat16"]),
            Said("out is {:.2f} at 2 ranks and {:.2f} at 64.", (merging[2], merging[64])),
            Said("rank 0 merges nothing and has {:.0%} of", (_share_of_rank_0(rows),)),
            Said("from 8 ranks on is above 0.03,", holds=flat),
            Said("(fitted exponent {:.2f})", (_exponent(sums),)),
            *_nccl(tables),
            Said("from 16 to 64 the error does grow by {:.2f} and {:.2f} per doubling", tuple(steps)),
        ],
    }


def _nccl(tables: Tables) -> list[Said]:
    """ring-flash-attn's llama3, whose dk and dv NCCL adds, beside ours on real ranks."""
    rows = tables.rows("packages/nvidia-h200-x4")
    rows = rows[rows["tensor"].isin(["dk", "dv"]) & (rows["kernel"] == "eager") & (rows["world_size"] > 1)]
    keys = ["dtype", "world_size", "seed", "tensor", "rank"]
    theirs, ours = (
        rows[rows["variant"] == name].set_index(keys).sort_index() for name in ("ring_flash_attn_llama3", "llama3")
    )
    numbers = ["error_max", "error_mean", "error_rel", "error_bias"]
    four = theirs.loc["bfloat16", 4]
    return [
        Said("all {} rows of its dk", (len(theirs),), holds=theirs[numbers].equals(ours[numbers])),
        Said("the worst of four has {:.2f} times single device's error in bfloat16.", (four["x_single_device"].max(),)),
    ]


def worst_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """`x_single_device` of the worst rank, mean over seeds, and `half` of its interval; indexed by variant, tensor and
    world size."""
    return over_ranks(rows[rows["world_size"] > 1], "max").set_index(INDEX).sort_index()


def _grid(values: "pd.Series[float]") -> list[Said]:
    """The rows of a table of four variants and tensors at 2, 8 and 64 ranks."""
    return [
        Said(
            f"| {variant}: out, dq, dk, dv | {FOUR} | {FOUR} | {FOUR} |",
            tuple(values[variant, tensor, size] for size in (2, 8, 64) for tensor in TENSORS),
        )
        for variant in ("ring", "zigzag", "llama3", "llama3_ring")
    ]


def _mean_of_merging_ranks(rows: pd.DataFrame) -> "pd.Series[float]":
    of_out = rows.query("variant == 'ring' and tensor == 'out' and dtype == 'bfloat16' and rank > 0")
    return of_out.groupby("world_size")["x_single_device"].mean()


def _share_of_rank_0(rows: pd.DataFrame) -> float:
    of_out = rows.query(
        "variant == 'ring' and tensor == 'out' and dtype == 'bfloat16' and world_size == 8 and rank >= 0"
    )
    squares = (of_out["error_rms"] ** 2).groupby(of_out["rank"]).sum()
    return float(squares[0] / squares.sum())


def _exponents(whole: "pd.Series[float]", variants: list[str]) -> "pd.Series[float]":
    several = whole[whole.index.isin(variants, level="variant") & (whole.index.get_level_values("world_size") >= 8)]
    return several.groupby(["dtype", "variant", "tensor"]).agg(lambda each: _exponent(each.droplevel([0, 1, 2])))


def _exponent(values: "pd.Series[float]") -> float:
    fit = fit_growth(values.items())
    return fit.exponent if isinstance(fit, Growth) else float("nan")
