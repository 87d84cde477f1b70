"""How long do people wait: for an assertion, a first row, a verdict, a plan?

Cold ones are a Python of their own, from its start, less the seconds that it imports torch; on a GPU its start as well.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import accuracy

START = "import time, torch; torch.zeros(1, device='{device}'); now = time.perf_counter()"
COLD = {
    "import accuracy; assert_close of (1, 512, 8, 64)": (1.5, """
import accuracy
q, k, v = (torch.randn(1, 512, 8, 64, device='{device}', requires_grad=True) for _ in range(3))
out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
accuracy.assert_close(out.detach(), *(x.detach() for x in (q, k, v)))"""),
    'measure("ring", world_size=[1, 2, 4], seqlen=1024)': (5, """
import accuracy
accuracy.measure("ring", world_size=[1, 2, 4], seqlen=1024, device='{device}')"""),
    "dry_run of 100,000 cases": (8, """
import subprocess, sys
words = ["variant=[ring,zigzag,striped,llama3]", "world_size=[1,2,4,8,16]", f"seed={{[*range(5000)]}}", "dry_run=true"]
words += ["kernel=eager", "device={device}"]
subprocess.run([sys.executable, "-m", "accuracy", *words], check=True, stdout=subprocess.DEVNULL)"""),
}  # fmt: skip
WRAPPED = """
import accuracy
from flash_attn import flash_attn_func
def wrapped(q, k, v, *, causal, softmax_scale):
    return flash_attn_func(q, k, v, 0.0, softmax_scale, causal)
found = accuracy.diagnose(wrapped, world_size=1, device="cuda", progress=False)
assert not found.is_bug, found.sentence"""
FLEX = """
import accuracy
from torch.nn.attention.flex_attention import flex_attention
compiled = torch.compile(flex_attention, dynamic=False)
def full(q, k, v, *, softmax_scale):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return compiled(q, k, v, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)
found = accuracy.diagnose(full, world_size=1, device="cuda", mask="full", progress=False)
assert not found.is_bug, found.sentence"""
FLA = """
import accuracy
from fla.ops.attn import parallel_attn
def fla(q, k, v, *, softmax_scale):
    return parallel_attn(q, k, v, scale=softmax_scale)
found = accuracy.diagnose(fla, world_size=1, device="cuda", mask="causal", progress=False)
assert not found.is_bug, found.sentence"""
ON_A_GPU = {
    "diagnose of a flash-attn wrapper": (12, WRAPPED), "again": (15, WRAPPED),
    "diagnose of compiled flex_attention": (45, FLEX), "again, once compiled": (15, FLEX),
    "diagnose of fla's parallel_attn": (40, FLA), "again, once its kernels are compiled": (15, FLA),
}  # fmt: skip


def lines(device: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, (target, script) in (COLD | (ON_A_GPU if device == "cuda" else {})).items():
            yield f"{name}: {_cold(script, device, Path(folder))}; target <= {target} s"
    shape, target = ((1, 8192, 32, 32, 128), 3) if device == "cuda" else ((2, 1000, 8, 2, 64), 2)
    seconds, extra = assertion(device, *shape)
    memory = "" if extra is None else f", {extra:.2f} GiB beside (target <= 4)"
    what = f"assert_close of (B, S, H, Hk, D) = {shape}"
    yield f"{what}, bfloat16, causal, with gradients: {seconds:.2f} s (target <= {target}){memory}"
    yield ""


def _cold(script: str, device: str, folder: Path) -> str:
    """Seconds beyond torch's start, or why there are none."""
    text = START + script + "\nprint('seconds', time.perf_counter() - now)"
    (folder / "cold.py").write_text(text.format(device=device))
    environment = os.environ | {"PYTHONPATH": f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, folder / "cold.py"], capture_output=True, text=True, env=environment)
    told = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds ")]
    return f"{float(told[0]):.1f} s" if told else f"not measured ({done.stderr.strip().splitlines()[-1][:200]})"


def assertion(device: str, batch: int, tokens: int, heads: int, heads_kv: int, dim: int) -> tuple[float, float | None]:
    """Seconds of the second of two assertions, and GiB beside the tensors that are given."""
    shapes = ((batch, tokens, each, dim) for each in (heads, heads_kv, heads_kv, heads))
    *leaves, dout = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes)
    first = (x.requires_grad_().transpose(1, 2) for x in leaves)
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(*first, is_causal=True, enable_gqa=heads != heads_kv).transpose(1, 2)
    gradients = torch.autograd.grad(out, leaves, dout)
    given = [out.detach(), *(x.detach() for x in leaves)]
    named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    extra = None
    for _ in range(2):
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        accuracy.assert_close(*given, dout=dout, causal=True, **named)
        seconds = time.perf_counter() - begin
        extra = (torch.cuda.max_memory_allocated() - held) / 2**30 if device == "cuda" else None
    return seconds, extra
