"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines
from accuracy.results.over_ranks import over_ranks

TABLE, TENSORS, SIZES = "thousand_ranks/nvidia-h200", ["out", "dq", "dk", "dv"], [16, 64, 256, 1024]
GROWTH, SUMS, INDEX = "world_size_growth/nvidia-h200", ["dk", "dv"], ["variant", "world_size", "tensor"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    worst = tables.claimed(
        TABLE,
        "(Added after the run.) On the worst rank",
        r"llama3_ring ([\d.]+), ring ([\d.]+), striped ([\d.]+), zigzag ([\d.]+)",
    )
    whole = tables.claimed(TABLE, "Every ring stays below 1.5", r"largest: ([\d.]+)")
    means = tables.whole(TABLE).query("dtype == 'bfloat16'").groupby(INDEX)["x_single_device"].mean().unstack()
    sums = means.loc["llama3"][SUMS].max().max()
    return {
        "../FINDINGS.md": [
            Said(
                "of rings stay within 1.3 times single device's error,",
                holds=max(worst[0], worst[1], worst[3], *whole) <= 1.3,
            ),
            Said("1,024 ranks of 64 tokens has {:.1f} times.", (worst[2],)),
            Said("llama3's 16-bit sums to {:.0f} times", (sums,)),
        ],
        "README.md": [*_table(tables, means), *_worst_ranks(tables.rows(TABLE)), *_claims(tables, means, sums)],
    }


def _table(tables: Tables, means: pd.DataFrame) -> list[Said]:
    def cells(variant: str, tensors: list[str], digits: int) -> list[str]:
        return [", ".join(f"{each:.{digits}f}" for each in means.loc[variant, size][tensors]) for size in SIZES]

    seconds = tables.whole(TABLE).groupby(["world_size", "variant"])["seconds"].min().unstack()[["ring", "llama3"]]
    took = [", ".join(f"{each:.{1 if size == 1024 else 2}f}" for each in seconds.loc[size]) for size in SIZES]
    rings = {f"{name}: out, dq, dk, dv": cells(name, TENSORS, 2) for name in ("ring", "zigzag", "striped")}
    return lines(
        {
            **rings,
            "ring: lse": cells("ring", ["lse"], 1),
            "llama3: dk, dv": cells("llama3", SUMS, 1),
            "llama3_ring: dk, dv": cells("llama3_ring", SUMS, 2),
            "seconds of a case: ring, llama3": took,
        }
    )


def _worst_ranks(rows: pd.DataFrame) -> list[Said]:
    rows = rows[(rows["dtype"] == "bfloat16") & rows["tensor"].isin(TENSORS) & (rows["world_size"] > 1)]
    most, mean = (over_ranks(rows, how).set_index(INDEX)["x_single_device"].unstack() for how in ("max", "mean"))
    ends = [end for name in ("ring", "zigzag") for end in (most.loc[name].min().min(), most.loc[name].max().max())]
    even, last = mean.loc["striped"][["dq", *SUMS]], most.loc["striped", 1024]
    return [
        Said(
            "a ring has {:.2f} to {:.2f} times single device's error at 4 to 1,024 ranks, zigzag {:.2f} to {:.2f},",
            tuple(ends),
        ),
        Said(
            "llama3's dk and dv {:.1f}, {:.1f}, {:.1f}, {:.1f} and {:.1f}.", tuple(most.loc["llama3"][SUMS].max(axis=1))
        ),
        Said("grows, to {:.2f} (dq), {:.2f} (dk) and {:.2f} (dv) at", tuple(last[["dq", *SUMS]])),
        Said("does not ({:.2f} to {:.2f} at every size)", (even.min().min(), even.max().max())),
        Said("the largest of 1,024 ratios is one of single tokens."),
    ]


def _claims(tables: Tables, means: pd.DataFrame, sums: float) -> list[Said]:
    rows, cases, held = tables.whole(TABLE), tables.cases(TABLE), tables.held(TABLE)
    costs = rows.groupby(["variant", "world_size"])[["seconds", "peak_bytes"]].min()
    bound = tables.claimed(TABLE, "Every ring stays below 1.5", r"largest: ([\d.]+)")
    growth = tables.whole(GROWTH).query(
        "dtype == 'bfloat16' and variant == 'llama3' and world_size == 64 and tensor == 'dk'"
    )
    pattern = r"from (-?[\d.]+) .* to ([\d.]+)"
    rings, lse, llama3 = (
        tables.claimed(TABLE, f"From 64 ranks on, {start}", pattern) for start in ("no ring's", "lse", "dk and dv")
    )
    pairs = {size: size * (size + 1) / 2 for size in SIZES}
    longer = costs.loc[("ring", 1024), "seconds"] / costs.loc[("ring", 16), "seconds"]
    gib = costs["peak_bytes"] / 2**30
    return [
        Said("{} cases measured, {} unsupported, none failed, {:.0f} seconds",
             (cases["ok"], cases["unsupported"], tables.seconds(TABLE)), not cases["failed"]),
        Said("All five claims hold.", holds=len(held) == 6 and all(held)),
        Said("(exponents from 64 ranks on {:.2f} to {:.2f}, at most {:.2f} times", (*rings, *bound)),
        Said("square root of the merges ({:.2f} to {:.2f}),", lse),
        Said("({:.2f}), to {:.0f} times where 15 was predicted", (llama3[0], sums)),
        Said("{:.1f} at 64 ranks in world_size_growth", (growth["x_single_device"].mean(),)),
        Said("With {:,.0f} times the block pairs", (pairs[1024] / pairs[16],)),
        Said("takes {:.0f} times as long,", (longer,)),
        Said("rank: {:.0f} GiB at 1,024 ranks, rings {:.1f},", (gib["llama3", 1024], gib["ring", 1024])),
    ]  # fmt: skip
