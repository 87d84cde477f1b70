"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables

TABLE = "thousand_ranks/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows(TABLE)
    sums = rows[(rows["variant"] == "llama3") & rows["tensor"].isin(["dk", "dv"]) & (rows["rank"] == -1)]
    worst = tables.claimed(
        TABLE,
        "(Added after the run.) On the worst rank",
        r"llama3_ring ([\d.]+), ring ([\d.]+), striped ([\d.]+), zigzag ([\d.]+)",
    )
    whole = tables.claimed(TABLE, "Every ring stays below 1.5", r"largest: ([\d.]+)")
    return {
        "../FINDINGS.md": [
            Said(
                "of rings stay within 1.3 times single device's error,",
                holds=max(worst[0], worst[1], worst[3], *whole) <= 1.3,
            ),
            Said("1,024 ranks of 64 tokens has {:.1f} times.", (worst[2],)),
            Said(
                "llama3's 16-bit sums to {:.0f} times",
                (sums.groupby(["tensor", "world_size"])["x_single_device"].mean().max(),),
            ),
        ]
    }
