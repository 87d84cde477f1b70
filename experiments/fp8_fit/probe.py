"""Where does cuDNN's FP8 attention differ from its emulation? Its own results on a GPU, and the emulation beside them.

`python experiments/fp8_fit/probe.py measure FOLDER` (a GPU, 20 s) writes cuDNN's results, one file a case.
`python experiments/fp8_fit/probe.py judge FOLDER knob=value ...` (anywhere, 1 min) prints for each tensor the share of
codes that the emulation has, too, the ratio of the error norms (emulation's over cuDNN's) and the correlation of both
errors, against float64 attention of the inputs before the cast; knobs of `quantised` change the emulation.
`python experiments/fp8_fit/probe.py tile` (a GPU) prints which keys share a running maximum.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

from accuracy.core.quantisation import FORMATS, POLICIES
from accuracy.kernel.block import fp8_graphs
from accuracy.kernel.block.fp8_operand import DTYPES
from accuracy.kernel.quantised import KERNEL
from accuracy.reference.float64 import attention

DIM = 128
SCALE = DIM**-0.5
INPUTS = ("gaussian", "uniform", "outliers", "heavy_channels")
CASES = list(product(INPUTS, ("e4m3", "e5m2"), ("causal", "full"), (512,)))
TENSORS = ("out", "dq", "dk", "dv")


def draw(name: str, length: int) -> list[Tensor]:
    """q, k, v, dout (1, S, 1, D), float32."""
    random = np.random.default_rng(0)
    shape = (1, length, 1, DIM)
    found = []
    for _ in range(4):
        x = random.standard_normal(shape)
        if name == "uniform":
            x = random.random(shape)
        if name == "outliers":
            x = x + 10 * random.standard_normal(shape) * (random.random(shape) < 0.001)
        if name == "heavy_channels":
            x = x * np.where(np.arange(DIM) % 32 == 3, 8.0, 1.0)
        found.append(torch.tensor(x, dtype=torch.float32))
    return found


def file_of(folder: Path, case: tuple[object, ...]) -> Path:
    return folder / f"{'_'.join(map(str, case))}.npz"


def measure(folder: Path) -> None:
    """Of each case cuDNN's out, dq, dk, dv (1, S, 1, D), float32."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        name, word, mask, length = case
        policy, causal = POLICIES[f"cudnn_{word}"], mask == "causal"
        q, k, v, dout = (x.cuda() for x in draw(name, length))
        out, lse = fp8_graphs.forward(q, k, v, policy, SCALE, causal)
        gradients = fp8_graphs.backward(dout, q, k, v, out, lse, policy, SCALE, causal)
        results = dict(zip(TENSORS, (out, *gradients), strict=True))
        np.savez_compressed(file_of(folder, case), **{key: x.cpu().numpy() for key, x in results.items()})


def judge(folder: Path, *knobs: str) -> None:
    """A row for each case and tensor, then the worst of each tensor and format."""
    changes = {name: yaml.safe_load(value) for name, value in (text.split("=") for text in knobs)}
    rows = pd.concat([compared(folder, case, changes) for case in CASES], ignore_index=True)
    print(rows.to_string(index=False, float_format="{:.4f}".format))
    rows["off"] = (rows["ratio"] - 1).abs()
    worst = rows.groupby(["format", "tensor"]).agg({"equal": "min", "off": "max", "correlation": "min"})
    print(worst.to_string(float_format="{:.4f}".format))


def compared(folder: Path, case: tuple[str, str, str, int], changes: dict[str, object]) -> pd.DataFrame:
    """Of each tensor: share of equal codes, ratio of the norms and correlation of both errors."""
    name, word, mask, length = case
    seen = np.load(file_of(folder, case))
    tensors, how = draw(name, length), {"scale": SCALE, "causal": mask == "causal"}
    kernel = KERNEL(**({"policy": f"cudnn_{word}", "key_chunk": 256, "backward_chunk": 128} | changes))
    out, lse = kernel.forward(*tensors[:3], **how, out_dtype=torch.float32)
    gradients = kernel.backward(tensors[3], *tensors[:3], out, lse, **how, gradient_dtype=torch.float32)
    reference = attention(*tensors, **how)
    apart = 2.0 ** -FORMATS[word].precision / 8  # neighbouring codes are 8 times as far apart, at least
    rows = []
    for tensor, x in zip(TENSORS, (out, *gradients), strict=True):
        other = torch.tensor(seen[tensor])
        mine, its = (each.double() - getattr(reference, tensor) for each in (x, other))
        equal = float(((x - other).abs() <= apart * other.abs()).double().mean())
        correlation = float((mine * its).sum() / (mine.norm() * its.norm()))
        rows.append((name, word, mask, tensor, equal, float(mine.norm() / its.norm()), correlation))
    return pd.DataFrame(rows, columns=["inputs", "format", "mask", "tensor", "equal", "ratio", "correlation"])


def tile() -> None:
    """A key's score is 14 above all others: relative to it they have a weight of 0 in e4m3, so keys of its tile are
    gone from out, and those of earlier tiles are not. v tells groups of 4 keys apart."""
    length, prescale = 512, POLICIES["cudnn_e4m3"].p_prescale
    for late in range(5, length, 64):
        q, k, v = (torch.zeros(1, 1, length, DIM, device="cuda") for _ in range(3))
        q[..., 0], k[0, 0, late, 0] = 16.0, 16.0
        v[0, 0, torch.arange(length), torch.arange(length) // 4] = 1.0
        codes = {name: x.to(DTYPES["e4m3"]) for name, x in zip("qkv", (q, k, v), strict=True)}
        shapes = tuple(tuple(x.shape) for x in codes.values())
        graph, inputs, outputs = fp8_graphs._forward_graph(shapes, "e4m3", 14 / 256, False)
        given = codes | dict.fromkeys(("descale_q", "descale_k", "descale_v"), 1.0)
        given |= {"scale_s": prescale, "descale_s": 1 / prescale, "scale_o": 2.0**26}
        out, lse = torch.empty_like(codes["q"]), torch.empty(1, 1, length, 1, device="cuda")
        largest = [torch.zeros(1, 1, 1, 1, device="cuda") for _ in range(2)]
        fp8_graphs._execute(graph, inputs, given, outputs, [out, lse, *largest])
        print(late, "".join(str(int(x > 0)) for x in out[0, 0, -1].float()))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    {"measure": measure, "judge": judge, "tile": tile}[command](*map(Path, rest[:1]), *rest[1:])
