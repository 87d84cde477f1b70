"""What does a kill cost a long reference? `python -m bench.killed [TOKENS] [SECONDS] [FOLDER]`

One head of TOKENS (786,432), forward and backward, by the fused reference, three times in processes of their own: to
the end without a checkpoint; with one, killed SECONDS (9) after it began; and again, to the end. Says the seconds of
each, how many the kill cost (those of the second and third above the first's), and whether the bits are equal. Targets:
at most 30 s, equal bits. FOLDER: where the checkpoint is to be. On a CPU in Triton's interpreter, with small parts.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests import interpreter

BETWEEN = 0.5
"""Seconds between two writings, as the kill comes early."""


def main(tokens: int, seconds: float, folder: Path) -> None:
    whole = run(tokens, "none", None)
    before = run(tokens, str(folder), seconds)
    files = sorted(folder.iterdir())
    size = sum(path.stat().st_size for path in files) / 2**30
    after = run(tokens, str(folder), None)
    print(f"reference of {tokens} tokens, one head: {whole[0]:.1f} s")
    print(f"  killed {before[0]:.1f} s after its begin; on disk {len(files)} files, {size:.2f} GiB")
    print(f"  resumed: {after[0]:.1f} s")
    print(f"  the kill cost {before[0] + after[0] - whole[0]:.1f} s; target <= 30")
    print(
        f"  bits {'equal' if whole[1] == after[1] else 'DIFFERENT'}; left on disk: {len(list(folder.glob('*')))} files"
    )


def run(tokens: int, folder: str, seconds: float | None) -> tuple[float, str]:
    """Seconds from the begin of the computation to its end or its kill, and the digest of the results."""
    words = [sys.executable, "-m", "bench.killed", "child", str(tokens), folder]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begin\n"
    begin = time.perf_counter()
    if seconds is None:
        took, digest = child.stdout.read().split()
        child.wait()
        return float(took), digest
    time.sleep(seconds)
    child.kill()
    child.wait()
    return time.perf_counter() - begin, ""


def compute(tokens: int, folder: str) -> None:
    """In a process of its own."""
    interpreter.prepare()
    from accuracy.reference import fused
    from accuracy.reference.checkpoint import Checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    dim = 128 if device == "cuda" else 16
    if device == "cpu":
        fused.HELD, fused.BAND_SCORES = 128**2, 2**14
    tensors = [torch.randn(1, tokens, 1, dim, generator=generator).bfloat16().to(device) for _ in range(4)]
    fused.attention(*(x[:, :256] for x in tensors), scale=0.088, causal=True)  # compiled before the clock starts
    checkpoint = None if folder == "none" else Checkpoint(Path(folder), "killed", BETWEEN if device == "cuda" else 0.0)
    print("begin", flush=True)
    begin = time.perf_counter()
    reference = fused.attention(*tensors, scale=0.088, causal=True, checkpoint=checkpoint)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    if checkpoint is not None:
        checkpoint.done()
    print(seconds, digest(*(getattr(reference, name) for name in ("out", "lse", "dq", "dk", "dv", "delta"))))


def digest(*tensors: torch.Tensor) -> str:
    """Of the bits: sums of the 64-bit patterns, as they are and times their places' odd numbers, wrapping around."""
    found = hashlib.sha256()
    for x in tensors:
        bits = x.contiguous().view(torch.int64).flatten()
        places = torch.arange(len(bits), device=bits.device) * 2 + 1
        found.update(str((int(bits.sum()), int((bits * places).sum()))).encode())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        compute(int(sys.argv[2]), sys.argv[3])
    else:
        given = sys.argv[1:]
        main(
            int(given[0]) if given else 786_432, float(given[1]) if len(given) > 1 else 9.0,
            Path(given[2] if len(given) > 2 else tempfile.mkdtemp()) / "checkpoint",
        )  # fmt: skip
