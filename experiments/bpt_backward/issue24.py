"""What ring-flash-attention #24 ran, with the package's own code of that day, and the means that its test prints.

    python -m experiments.bpt_backward.issue24 FOLDER [--tokens 16384] [--heads 5 8] [--device cuda]

The ring is that of ring-flash-attention at commit 55ff66f (2024-03-13), the newest before the issue: lse' = lse +
ln(1 + exp(block_lse - lse)), out in float32, buffers of the gradients in the inputs' dtype, dq cast to bfloat16.
Inside a ring step the chunks are the issue's: of keys from the diagonal back, joined first, then with the ring's pair
(`joined=step`); `joined=chunk` joins every chunk with the ring's pair, as `bpt_ring` does. The buffers are not cleared
between steps. What is compared is what the package's test compares, one flash-attention call over all tokens, less the
ring's, in float16; `printed` is the mean of the absolute values in float16, which is what the test prints.

Written are FOLDER/printed.csv, and on a GPU FOLDER/splitting.csv: the last rank's milliseconds and peak memory by
chunk size, with cleared buffers. On a CPU only the means with chunks of half a rank's tokens.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.kernel.base import Kernel
from accuracy.runtime import arithmetic, device

RANKS, DIM, REPEATS = 8, 128, 4
SCALE = DIM**-0.5
Pair = tuple[Tensor, Tensor]
"""out (B, S, H, D) and lse (B, S, H, 1), float32."""


def kernel_on(device: str) -> Kernel:
    name, knobs = ("flash_attn", (("deterministic", False),)) if device == "cuda" else ("eager", ())
    return plugins.build_options(plugins.load(f"accuracy.kernel.{name}"), knobs).build(device)


def attend(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Pair:
    out, lse = kernel.forward(q, k, v, scale=SCALE, causal=causal, out_dtype=q.dtype)
    return out.float(), lse.transpose(1, 2).unsqueeze(-1)


def joined(pair: Pair | None, block: Pair) -> Pair:
    """`update_out_and_lse` of that commit."""
    if pair is None:
        return block
    (out, lse), (block_out, block_lse) = pair, block
    new = lse + torch.log(1 + torch.exp(block_lse - lse))
    return torch.exp(lse - new) * out + torch.exp(block_lse - new) * block_out, new


def chunks(tokens: int, size: int, causal: bool) -> Iterator[tuple[slice, slice, bool]]:
    """Rows, keys and mask of each pair of chunks of a ring step: of keys the diagonal first."""
    cut = [slice(begin, begin + size) for begin in range(0, tokens, size)]
    for i, rows in enumerate(cut):
        for j in reversed(range(i + 1 if causal else len(cut))):
            yield rows, cut[j], causal and i == j


def forward(kernel: Kernel, q: Tensor, keys: list[Tensor], values: list[Tensor], size: int, by_step: bool) -> Pair:
    """A rank's out in float16 and lse (B, H, S). keys, values: its own first, then its upstream neighbours'."""
    tokens = q.shape[1]
    ring: list[Pair | None] = [None] * (tokens // size)
    for step, (k, v) in enumerate(zip(keys, values, strict=True)):
        inner: list[Pair | None] = [None] * len(ring) if by_step else ring
        for rows, columns, causal in chunks(tokens, size, step == 0):
            place = rows.start // size
            inner[place] = joined(inner[place], attend(kernel, q[:, rows], k[:, columns], v[:, columns], causal))
        if by_step:
            ring = [joined(pair, block) for pair, block in zip(ring, inner, strict=True) if block is not None]
    pairs = [pair for pair in ring if pair is not None]
    out, lse = (torch.cat([pair[place] for pair in pairs], 1) for place in range(2))
    return out.to(q.dtype), lse.squeeze(-1).transpose(1, 2).contiguous()


def backward(
    kernel: Kernel, dout: Tensor, q: Tensor, keys: list[Tensor], values: list[Tensor], out: Tensor, lse: Tensor,
    size: int, cleared: bool,
) -> tuple[Tensor, list[Pair]]:  # fmt: skip
    """A rank's dq, and its shares of dk and dv by step, each in float32."""
    buffers = [torch.zeros_like(q) for _ in range(3)]
    dq, shares = torch.zeros_like(q, dtype=torch.float32), []
    for step, (k, v) in enumerate(zip(keys, values, strict=True)):
        for rows, columns, causal in chunks(q.shape[1], size, step == 0):
            given = (dout[:, rows], q[:, rows], k[:, columns], v[:, columns], out[:, rows], lse[:, :, rows])
            gradients = kernel.backward(*given, scale=SCALE, causal=causal, gradient_dtype=q.dtype)
            for buffer, place, x in zip(buffers, (rows, columns, columns), gradients, strict=True):
                buffer[:, place] += x
        dq += buffers[0]
        shares.append((buffers[1].float(), buffers[2].float()))
        if cleared:
            for buffer in buffers:
                buffer.zero_()
    return dq, shares


def ring(kernel: Kernel, inputs: list[Tensor], size: int, by_step: bool) -> dict[str, list[Tensor]]:
    """out, lse, dq, dk, dv of each rank; every buffer uncleared."""
    q, k, v, dout = (list(x.chunk(RANKS, 1)) for x in inputs)
    found: dict[str, list[Tensor]] = {name: [] for name in ("out", "lse", "dq")}
    sums = [[torch.zeros_like(k[0], dtype=torch.float32) for _ in range(RANKS)] for _ in range(2)]
    for rank in range(RANKS):
        seen = range(rank, -1, -1)
        keys, values = [k[place] for place in seen], [v[place] for place in seen]
        out, lse = forward(kernel, q[rank], keys, values, size, by_step)
        dq, shares = backward(kernel, dout[rank], q[rank], keys, values, out, lse, size, cleared=False)
        for place, share in zip(seen, shares, strict=True):
            sums[0][place] += share[0]
            sums[1][place] += share[1]
        for name, x in zip(found, (out, lse, dq.to(torch.bfloat16).to(q[0].dtype)), strict=True):
            found[name].append(x)
    return {**found, "dk": [x.to(k[0].dtype) for x in sums[0]], "dv": [x.to(k[0].dtype) for x in sums[1]]}


def printed(kernel: Kernel, inputs: list[Tensor], sizes: list[int]) -> Iterator[dict[str, object]]:
    """What `log` of the package's test prints: of one call's tensors (diff=False) and of the diffs, by rank."""
    q, k, v, dout = inputs
    out, lse = kernel.forward(q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype)
    gradients = kernel.backward(dout, q, k, v, out, lse, scale=SCALE, causal=True, gradient_dtype=q.dtype)
    whole = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *gradients), strict=True))
    local = {name: x.chunk(RANKS, 2 if name == "lse" else 1) for name, x in whole.items()}
    for name in local:
        yield from (line("one call", "", name, rank, local[name][rank]) for rank in range(RANKS))
    yield line("one call", "", "lse", -1, lse)
    for size in sizes:
        for by_step in (True, False):
            found = ring(kernel, inputs, size, by_step)
            for name in local:
                for rank in range(RANKS):
                    how = "step" if by_step else "chunk"
                    yield line(str(size), how, name, rank, local[name][rank] - found[name][rank])


def line(chunk: str, how: str, name: str, rank: int, x: Tensor) -> dict[str, object]:
    x = x.abs()
    return {
        "chunk": chunk, "joined": how, "tensor": name, "rank": rank, "max": float(x.max()),
        "mean": float(x.double().mean()), "printed": float(x.mean()),
    }  # fmt: skip


def splitting(kernel: Kernel, inputs: list[Tensor], sizes: list[int]) -> Iterator[dict[str, object]]:
    """The last rank, which has the most to do: forward and backward apart. MiB beyond what was there before."""
    q, k, v, dout = (list(x.chunk(RANKS, 1)) for x in inputs)
    q, dout, keys, values = q[-1].clone(), dout[-1].clone(), k[::-1], v[::-1]
    for size in sizes:
        out, lse = forward(kernel, q, keys, values, size, True)
        ways: dict[str, Callable[[], object]] = {
            "forward": lambda size=size: forward(kernel, q, keys, values, size, True),
            "backward": lambda size=size, out=out, lse=lse: backward(
                kernel, dout, q, keys, values, out, lse, size, True
            ),
        }
        for way, call in ways.items():
            took, peak = cost(call, q.is_cuda)
            yield {"chunk": size, "way": way, "ms": took, "peak_mib": peak}


def cost(call: Callable[[], object], on_gpu: bool) -> tuple[float, float]:
    """Milliseconds of the fastest call, as others may share the GPU, and the peak in MiB (0 on a CPU)."""
    call()
    times, peak = [], 0
    for _ in range(REPEATS):
        with device.measured("cuda" if on_gpu else "cpu") as took:
            call()
        times.append(1000 * took.seconds)
        peak = took.peak_bytes or 0
    return min(times), peak / 2**20 if on_gpu else 0.0


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--tokens", type=int, default=16384)
    words.add_argument("--heads", type=int, nargs="+", default=[5, 8])
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--device", default="cuda")
    given = words.parse_args()
    arithmetic.make_exact()
    kernel, local = kernel_on(given.device), given.tokens // RANKS
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for sizes, seeds in (([local // 2], range(given.seeds)), ([local // 4, local // 16], range(1))):
        for heads, seed in ((heads, seed) for heads in given.heads for seed in seeds):
            about = {"tokens": given.tokens, "heads": heads, "seed": seed}
            rows += [{**about, **each} for each in printed(kernel, drawn(given, heads, seed), sizes)]
        written(rows, given.folder / "printed.csv")
        if given.device != "cuda":
            return
        if local // 2 in sizes:
            halved = [local >> power for power in range(5)]
            costs = [
                {"tokens": given.tokens, "heads": heads, **each}
                for heads in given.heads
                for each in splitting(kernel, drawn(given, heads, 0), halved)
            ]
            written(costs, given.folder / "splitting.csv")


def drawn(given: argparse.Namespace, heads: int, seed: int) -> list[Tensor]:
    """q, k, v, dout."""
    generator = torch.Generator(given.device).manual_seed(seed)
    shape = (1, given.tokens, heads, DIM)
    return [torch.randn(shape, generator=generator, device=given.device, dtype=torch.float16) for _ in range(4)]


def written(rows: list[dict[str, object]], path: Path) -> None:
    table = pd.DataFrame(rows).drop_duplicates()
    table.to_csv(path, index=False, float_format="%.4g")
    print(table.tail(16).to_string(), flush=True)


if __name__ == "__main__":
    main()
