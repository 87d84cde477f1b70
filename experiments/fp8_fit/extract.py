"""What of runs of fp8_fit a reader quotes: for each pair of a kernel and an emulation, how their errors agree.

python experiments/fp8_fit/extract.py RUN_FOLDER ... reports/fp8_fit/nvidia-h200.csv.gz

Columns: see `judged` of claims.py; also seqlen and heads. A pair that several runs have is of the last one.
"""

import runpy
import sys
from pathlib import Path

import pandas as pd

from accuracy.results.table import read_results

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
SETTING = ["path_a", "path_b", "inputs", "mask", "seqlen", "heads", "tensor"]


def main(runs: list[Path], to: Path) -> None:
    rows = pd.concat([CLAIMS["judged"](read_results(run)) for run in runs])
    rows = rows.drop_duplicates(SETTING, keep="last").sort_values(SETTING)
    to.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(to, index=False, float_format="%.6g")


if __name__ == "__main__":
    *folders, target = map(Path, sys.argv[1:])
    main(folders, target)
