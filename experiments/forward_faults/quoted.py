"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables

RATIO = runpy.run_path(str(Path(__file__).with_name("claims.py")))["_ratio"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_csv(tables.reports / "forward_faults/gradients.csv")
    rows["x_single_device"] = rows["error_rel"] / rows["single_device_rel"]
    more = tuple(ratio - 1 for ratio in RATIO(rows[rows["seqlen"] == 2080], "ring"))
    sharp = rows[(rows["seqlen"] == 128) & (rows["tensor"] == "d_query") & (rows["gain"] == 2)]
    exact = sharp.groupby("layers")["exact_diff_rel"].median()
    return {
        "../FINDINGS.md": [
            Said("a ring at 8 ranks adds {:.1%} ({:.1%} to {:.1%}) to the error of single device's gradients.", more),
            Said(
                "Differences of 0.5 at 24 layers and 0.9 at 128 (Megatron-LM #1503) are",
                holds=exact[24] > 0.45 and exact[128] > 0.9,
                source="https://github.com/NVIDIA/Megatron-LM/issues/1503",
            ),
        ],
    }
