"""`python -m experiments.zoo.power CSV`: the smallest faults that are found in a kernel that takes 16 bits alone.

flash-attn 2 on one GPU, with one fault of one size each; several processes side by side.
"""

import contextlib
import csv
import io
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from experiments.zoo.kernels import KERNELS

KERNEL = "flash-attn 2"
SIZES = {
    "factor of out": (1.0001, 1.0002, 1.0005, 1.001, 1.002),
    "factor of dk": (1.0001, 1.0002, 1.0005, 1.001, 1.002),
    "share of rows of out that are their neighbour's": (1 / 8, 1 / 64, 1 / 512, 1 / 2048),
    "share of calls whose out is 1.5 times itself": (1 / 100, 1 / 300, 1 / 1000, 1 / 3000),
}
TENSOR = {"factor of dk": "dk"}
COLUMNS = ("fault", "size", "found", "label", "wrong", "seconds", "sentence")
JOBS = 9


def scaled(x: Tensor, factor: float) -> Tensor:
    """x times a factor near 1, which rounding to 16 bits to the nearest would undo: rounded up or down by chance, the
    same chance in every call."""
    y = x.float() * factor
    bits = 8 if x.dtype == torch.bfloat16 else 11
    spacing = torch.ldexp(torch.ones_like(y), torch.frexp(y).exponent - bits)
    generator = torch.Generator(x.device).manual_seed(0)
    chance = torch.rand(y.shape, generator=generator, device=y.device)
    return (y + (chance - 0.5) * spacing).to(x.dtype)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return scaled(gradient, ctx.factor), None


class _Out(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        return scaled(x, factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def planted(fault: str, size: float) -> Callable[..., Any]:
    """The kernel with one fault."""
    kernel, calls = KERNELS[KERNEL], [0]

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        calls[0] += 1
        if fault == "factor of dk":
            k = _Scaled.apply(k, size)
        out, lse = kernel(q, k, v, causal=causal, softmax_scale=softmax_scale)
        if fault == "factor of out":
            return _Out.apply(out, size), lse
        if fault.startswith("share of rows"):
            generator = torch.Generator().manual_seed(0)
            wrong = (torch.rand(out.shape[:3], generator=generator) < size).to(out.device)[..., None]
            return torch.where(wrong, out.roll(1, 1), out), lse
        if fault.startswith("share of calls") and calls[0] % round(1 / size) == round(0.77 / size):
            return out * 1.5, lse
        return out, lse

    return attention


def answer(fault: str, size: float) -> list[object]:
    """A row of `COLUMNS`. found: a bug, with the tensor that is wrong."""
    import accuracy
    from accuracy.verdict.label import BUGS

    warnings.filterwarnings("ignore")
    logging.getLogger("accuracy").setLevel(logging.ERROR)
    begun = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        found = accuracy.diagnose({"attention": planted(fault, size)}, world_size=1, device="cuda")
    wrong = {*found.verdicts.loc[found.verdicts["label"].isin((*BUGS, "nondeterministic")), "tensor"]}
    right = found.is_bug and TENSOR.get(fault, "out") in wrong
    seconds = f"{time.perf_counter() - begun:.0f}"
    return [fault, f"{size:.6g}", right, found.label, " ".join(sorted(wrong)), seconds, found.sentence]


def main() -> int:
    if len(sys.argv) == 4:
        csv.writer(sys.stdout).writerow(answer(sys.argv[2], float(sys.argv[3])))
        return 0
    questions = [(fault, size) for fault, sizes in SIZES.items() for size in sizes]

    def one(question: tuple[str, float]) -> list[str]:
        command = [sys.executable, "-m", "experiments.zoo.power", sys.argv[1], question[0], str(question[1])]
        ran = subprocess.run(command, capture_output=True, text=True)
        rows = list(csv.reader(ran.stdout.splitlines()))
        return rows[-1] if rows else [question[0], str(question[1]), "", "failed", "", "", ran.stderr[-300:]]

    with ThreadPoolExecutor(JOBS) as pool, open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in pool.map(one, questions):
            print(*row, sep=" | ", flush=True)
            writer.writerow(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
