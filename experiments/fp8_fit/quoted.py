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
    other = pd.read_csv(tables.reports / "fp8_fit/flashinfer-nvidia-h100.csv.gz")
    theirs = other[other["path_b"].str.fullmatch(r"key_chunk:192/policy:\w+")]
    far = [
        other[other["path_b"].str.contains(place, regex=False)]["correlation"].min()
        for place in ("key_chunk:128/", "descending:false", "p_prescale:1")
    ]
    short = [
        other[other["path_b"].str.contains(place, regex=False)]["ratio"].min()
        for place in ("cut_products:false", "flush_interval:128")
    ]
    return {
        "README.md": [
            Said("FlashInfer 0.6.18's own FP8 forward,"),
            Said(
                "192 keys have its norm of out's error to {:.4f} and a correlation of at least 0.9999",
                (theirs.loc[(theirs["ratio"] - 1).abs().idxmax(), "ratio"],),
                holds=theirs["correlation"].min() >= 0.9999,
            ),
            Said(
                "is {:.3f} (tiles of 128 keys), {:.3f} (tiles from the first key on), {:.3f} (P without its",
                far,
            ),
            Said("keys, the norm is down to {:.2f} or {:.2f} times the kernel's:", short),
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
