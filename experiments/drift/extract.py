"""What of a run of drift or batch_invariance a reader quotes: pairs of paths or boundaries, all ranks together; and,
in a file beside it, log-probabilities at depths of 1, 2, 4, ... layers.

python experiments/drift/extract.py outputs/drift-5bffe0c7 reports/drift/nvidia-h200.csv
"""

import sys
from pathlib import Path

import pandas as pd

from accuracy.results.table import ALL_RANKS, read_boundaries, read_logprobs, read_results
from accuracy.verdict.drift import boundaries, logprobs, pairs

SETTING = ["path_a", "path_b", "dtype", "batch", "seed", "tensor"]
NUMBERS = ["label", "nearer", "drift_differ", "drift_rel", "drift_expected", "drift_limit"]


def main(run: Path, to: Path) -> None:
    results, found = read_results(run), read_boundaries(run)
    rows = boundaries(found, results).drop(columns="case_id") if len(found) else _pairs(results)
    to.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(to, index=False, float_format="%.4g")
    words = read_logprobs(run)
    if len(words):
        words = logprobs(words, results).drop(columns=["case_id", "weights", "seed"])
        words = words[words["depth"] & (words["depth"] - 1) == 0]
        words.to_csv(to.with_stem(f"{to.stem}-logprobs"), index=False, float_format="%.4g")


def _pairs(results: pd.DataFrame) -> pd.DataFrame:
    rows = pairs(results)
    rows = rows[(rows["rank"] == ALL_RANKS) & (rows["tensor"] != "delta") & rows["drift_differ"].notna()]
    rows = rows.astype({"drift_differ": "int64"})
    return rows[[*SETTING, *NUMBERS]].sort_values(SETTING)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
