"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
KERNELS = {
    "cuDNN 9.19, e4m3": "cudnn_fp8/policy=cudnn_e4m3", "cuDNN 9.19, e5m2": "cudnn_fp8/policy=cudnn_e5m2",
    "SageAttention 1.0.6": "sage/smooth_k=True",
    "Triton, `fp8_hopper`": "triton_fp8/key_chunk=64,policy=fp8_hopper",
    "Triton, `fp8_hopper_flush`": "triton_fp8/key_chunk=64,policy=fp8_hopper_flush",
    "Triton, `fp8_tensor`": "triton_fp8/key_chunk=64,policy=fp8_tensor",
    "Triton, `fp8_block`": "triton_fp8/key_chunk=64,policy=fp8_block",
}  # fmt: skip
INPUTS = ("gaussian", "outliers", "heavy_channels", "uniform")
OWN = {  # the candidate that is to be the nearest
    "cuDNN 9.19, e4m3": "backward_chunk:128/key_chunk:256/policy:cudnn_e4m3",
    "cuDNN 9.19, e5m2": "backward_chunk:128/key_chunk:256/policy:cudnn_e5m2",
    "SageAttention 1.0.6": "half_terms:16/key_chunk:64/policy:sage",
    "Triton, `fp8_tensor`": "flush_interval:32/key_chunk:64/policy:fp8_hopper",
    "Triton, `fp8_hopper`": "key_chunk:64/policy:fp8_hopper",
    "Triton, `fp8_hopper_flush`": "key_chunk:64/policy:fp8_hopper_flush",
}
FLOAT32 = "accumulator_bits:24/backward_chunk:128/cut_products:False"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_csv(tables.reports / "fp8_fit/nvidia-h200.csv.gz")
    fitted = CLAIMS["fitted"](rows)
    nearest = fitted.groupby("path_a")["path_b"].first()
    own = all(nearest[KERNELS[name]] == f"single_device@1+quantised/{path}" for name, path in OWN.items())
    uniform = rows[rows["inputs"] == "uniform"]
    plain = uniform[(uniform["path_a"] == KERNELS["Triton, `fp8_tensor`"]) & (uniform["tensor"] == "out")]
    plain = plain[plain["path_b"].str.endswith("policy:fp8_tensor")]["ratio"]
    cudnn = uniform[uniform["path_b"].str.contains(FLOAT32, regex=False)]["ratio"]
    return {
        "README.md": [
            *lines({head: [_worst(fitted, kernel, inputs) for inputs in INPUTS] for head, kernel in KERNELS.items()}),
            Said("Each nearest candidate is the kernel's own policy:", holds=own),
            Said("the norm of out on uniform inputs is {:.1%} off.", (1 - plain.iloc[0],)),
            Said("with float32 sums has {:.2f} to {:.2f} times its norms.", (cudnn.min(), cudnn.max())),
        ]
    }


def _worst(fitted: pd.DataFrame, kernel: str, inputs: str) -> str:
    rows = fitted[(fitted["path_a"] == kernel) & (fitted["inputs"] == inputs)]
    furthest = rows.loc[(rows["ratio"] - 1).abs().idxmax(), "ratio"]
    return f"{furthest:.4f}, {rows['correlation'].min():.4f}"
