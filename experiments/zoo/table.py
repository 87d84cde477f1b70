"""`python -m experiments.zoo.table FOLDER CSV`: the answers of a folder as one table, a row for each question."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.zoo.faults import TENSORS

FOUR = ("out", "dq", "dk", "dv")
COLUMNS = (
    "kernel", "fault", "seed", "package", "device", "dtypes", "label", "is_bug", "wrong", "wrong_dtypes",
    "right_tensor", "seconds", "measured", "failed", "x_floor", "sentence",
)  # fmt: skip


def row_of(answer: dict[str, Any]) -> dict[str, Any]:
    """right_tensor: whether a fault's first tensor is among those called wrong; measured, failed: cases; x_floor: the
    largest error over the rounding floor of out, dq, dk and dv, by dtype; failed: why there is no answer."""
    if "label" not in answer:
        return {"kernel": answer["kernel"], "fault": answer["fault"], "seed": answer["seed"], "label": "failed",
                "sentence": answer["failed"]}  # fmt: skip
    floors = {
        dtype: max((x for tensor, x in by.items() if tensor in FOUR and x == x), default=float("nan"))
        for dtype, by in answer["x_floor"].items()
    }
    found = {name: answer[name] for name in COLUMNS if name in answer and name not in ("x_floor", "failed")}
    for name in ("dtypes", "wrong", "wrong_dtypes"):
        found[name] = " ".join(answer[name])
    right = not answer["fault"] or TENSORS[answer["fault"]] <= {*answer["wrong"]}
    noted = answer["fault"] == "race" and answer["label"] == "nondeterministic"
    return found | {
        "right_tensor": right or noted, "measured": answer["cases"].get("ok", 0),
        "failed": answer["cases"].get("failed", 0),
        "x_floor": " ".join(f"{dtype}={x:.3g}" for dtype, x in floors.items()),
    }  # fmt: skip


def main(folder: Path, csv: Path) -> None:
    answers = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    table = pd.DataFrame([row_of(each) for each in answers], columns=list(COLUMNS))
    table.to_csv(csv, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
