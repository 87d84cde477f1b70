"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
KERNELS = (
    "sage/smooth_k=True", "triton_fp8/key_chunk=64,policy=fp8_tensor", "triton_fp8/key_chunk=64,policy=fp8_block",
    "cudnn_fp8/policy=cudnn_e4m3", "cudnn_fp8/policy=cudnn_e5m2",
)  # fmt: skip
INPUTS = {
    "Gaussian (fitted on)": "gaussian",
    "outliers": "outliers",
    "heavy channels": "heavy_channels",
    "uniform": "uniform",
}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    fitted = CLAIMS["fitted"](pd.read_csv(tables.reports / "fp8_fit/nvidia-h200.csv.gz"))
    nearest = fitted.groupby("path_a")["path_b"].first()
    own = all("backward_chunk:128/key_chunk:256" in nearest[kernel] for kernel in KERNELS[3:])
    return {
        "README.md": [
            *lines({head: [_worst(fitted, kernel, inputs) for kernel in KERNELS] for head, inputs in INPUTS.items()}),
            Said("Sage's nearest policy there is `half_terms:16`:", holds="half_terms:16" in nearest[KERNELS[0]]),
            Said("cuDNN's nearest of five are its own", holds=own),
        ]
    }


def _worst(fitted: pd.DataFrame, kernel: str, inputs: str) -> str:
    rows = fitted[(fitted["path_a"] == kernel) & (fitted["inputs"] == inputs)]
    if rows.empty:
        return ""
    furthest = rows.loc[(rows["ratio"] - 1).abs().idxmax(), "ratio"]
    return f"{furthest:.4f}, {rows['correlation'].min():.4f}"
