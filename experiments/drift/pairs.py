"""A line for each pair of paths and tensor, all ranks together: what of a run of drift a reader quotes.

python experiments/drift/pairs.py outputs/drift-5bffe0c7 reports/drift/nvidia-h200.csv
"""

import sys
from pathlib import Path

from accuracy.results.table import ALL_RANKS, read_results
from accuracy.verdict.drift import pairs

COLUMNS = ["path_a", "path_b", "dtype", "seed", "tensor", "label", "nearer",
           "drift_differ", "drift_rel", "drift_expected", "drift_limit"]  # fmt: skip


def main(run: Path, to: Path) -> None:
    rows = pairs(read_results(run))
    rows = rows[(rows["rank"] == ALL_RANKS) & (rows["tensor"] != "delta")]
    to.parent.mkdir(parents=True, exist_ok=True)
    rows = rows.astype({"drift_differ": "int64"})
    rows[COLUMNS].sort_values(COLUMNS[:5]).to_csv(to, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
