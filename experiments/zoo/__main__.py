"""`python -m experiments.zoo FOLDER`: what does a diagnosis say of kernels that others wrote, healthy and with a fault?

Writes FOLDER/NUMBER.json for each question, healthy ones first, and zoo.csv, a row for each; the same command goes on
where it was stopped.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.zoo.faults import FAULTS, OF, PLANTED_IN, TENSORS
from experiments.zoo.kernels import KERNELS, PACKAGES

SEEDS = (0, 4)
"""0: those of the experiment."""
SECONDS = 240
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
COLUMNS = (
    "kernel", "fault", "seed", "package", "device", "dtypes", "label", "is_bug", "wrong", "wrong_dtypes",
    "right_tensor", "seconds", "measured", "failed", "x_floor", "sentence",
)  # fmt: skip


def questions() -> list[tuple[str, str, int]]:
    """(kernel, fault or empty, seed), healthy ones first."""
    healthy = [(kernel, "", seed) for seed in SEEDS for kernel in KERNELS]
    return healthy + [(kernel, fault, 0) for fault in FAULTS for kernel in OF.get(fault, PLANTED_IN)]


def answer(kernel: str, fault: str, seed: int) -> dict[str, Any]:
    """One diagnosis. right_tensor: whether a fault's first tensor is among those called wrong; measured, failed: cases;
    x_floor: by dtype the largest error of out, dq, dk and dv over the rounding floor."""
    import torch

    import accuracy
    from accuracy.verdict.label import BUGS

    warnings.filterwarnings("ignore")
    logging.getLogger("accuracy").setLevel(logging.ERROR)
    package = next((name for start, name in PACKAGES.items() if kernel.startswith(start)), "torch")
    fn = FAULTS[fault](KERNELS[kernel]) if fault else KERNELS[kernel]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    begun = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        how = {"seed": seed} if seed else {}
        found = accuracy.diagnose({"attention": fn}, world_size=1, device=device, **how)
    seconds = time.perf_counter() - begun
    rows = found.results
    cases = rows.drop_duplicates("case_id")["status"].value_counts().to_dict()
    main = rows[(rows["rank"] == -1) & (rows["inputs"] == "gaussian") & (rows["seqlen"] >= 500)]
    floors = main[main["tensor"].isin(("out", "dq", "dk", "dv"))].groupby("dtype")["x_floor"].max().dropna()
    wrong = found.verdicts[found.verdicts["label"].isin(BUGS)]
    measured = found.verdicts[found.verdicts["label"] != "not_measured"]
    noted = fault == "race" and found.label == "nondeterministic"
    return {
        "package": f"{package} {importlib.metadata.version(package)}",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "dtypes": " ".join(sorted({*measured["dtype"]})), "label": found.label, "is_bug": found.is_bug,
        "wrong": " ".join(sorted({*wrong["tensor"]})), "wrong_dtypes": " ".join(sorted({*wrong["dtype"]})),
        "right_tensor": not fault or noted or TENSORS[fault] <= {*wrong["tensor"]},
        "seconds": seconds, "measured": cases.get("ok", 0), "failed": cases.get("failed", 0),
        "x_floor": " ".join(f"{dtype}={x:.3g}" for dtype, x in floors.items()), "sentence": found.sentence,
    }  # fmt: skip


def _one(number: int, folder: Path) -> str:
    kernel, fault, seed = questions()[number]
    path = folder / f"{number:03d}.json"
    command = [sys.executable, "-m", "experiments.zoo", str(folder), "--number", str(number)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if ran.returncode in INTERRUPTED:
            return f"{kernel} · {fault or 'healthy'} · seed {seed}: interrupted; the same command asks it again"
        failed = ran.stderr.strip().splitlines()[-1:] if ran.returncode else []
    except subprocess.TimeoutExpired:
        failed = [f"no answer in {SECONDS} s"]
    if failed or not path.exists():
        why = {"label": "failed", "sentence": " ".join(failed)[:400]}
        path.write_text(json.dumps({"kernel": kernel, "fault": fault, "seed": seed, **why}))
    found = json.loads(path.read_text())
    return f"{kernel} · {fault or 'healthy'} · seed {seed}: {found['label']}: {found['sentence'][:150]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=6, help="processes side by side on one GPU")
    parser.add_argument("--seconds", type=float, default=420.0, help="no question begins later than that")
    parser.add_argument("--kernels", help="those whose names hold this text")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.number is not None:
        kernel, fault, seed = questions()[given.number]
        found = {"kernel": kernel, "fault": fault, "seed": seed, **answer(kernel, fault, seed)}
        (given.folder / f"{given.number:03d}.json").write_text(json.dumps(found))
        return 0
    begun = time.monotonic()
    left = [
        number for number, (kernel, _, _) in enumerate(questions())
        if not (given.folder / f"{number:03d}.json").exists() and (given.kernels or "") in kernel
    ]  # fmt: skip

    def one(number: int) -> str | None:
        return _one(number, given.folder) if time.monotonic() - begun < given.seconds else None

    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(one, left):
            if line:
                print(line, flush=True)
    answers = [json.loads(path.read_text()) for path in sorted(given.folder.glob("[0-9]*.json"))]
    table = pd.DataFrame(answers, columns=list(COLUMNS))
    table.to_csv(given.folder / "zoo.csv", index=False, float_format="%.4g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
