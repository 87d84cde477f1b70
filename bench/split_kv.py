"""How much does decoding gain from keys cut into parts: flash-attn unsplit, splitting by itself, parts joined by us?

python -m bench.split_kv

flash-attention #1029 reports 77 us unsplit and 24 us split and joined for one query with as many key/value heads as
query heads and a small batch, in flash-attn's varlen path, which splits only where there are fewer key/value heads. Its
lengths are not known here: 4096 to 131072 keys, batch 1, 32 query heads of 128, bfloat16. Each step is a CUDA graph of
calls that go round enough copies of the keys that none is found in the cache; CUDA events, medians.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import Precision
from accuracy.core.masks import Visibility
from accuracy.kernel import flash_attn
from accuracy.kernel.block.calls import Scores
from accuracy.runtime import arithmetic
from accuracy.variant import split_kv
from accuracy.variant.base import Rank
from bench import device_time

HEADS, DIM, DTYPE = 32, 128, torch.bfloat16
SCALE = DIM**-0.5
LENGTHS, HEADS_KV, SPLITS = (4096, 8192, 65536, 131072), (32, 8), (2, 4, 8, 16, 32, 64, 128)
OURS = (8, 32)  # parts that we join
CACHE_BYTES = 2**28  # five times an H200's L2
CALLS, ROUNDS = 20, 21
WRONG = "is wrong"
CLOSE = 2**-6  # of out, relative: two roundings to bfloat16 are 2^-8; a lost part of n costs 1 / sqrt(n), at least 0.09
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (1, 1, H, D), k, v (1, S, Hk, D) -> out


@dataclass(frozen=True)
class Timed:
    """Microseconds of a call: the median, and the largest over the least."""

    microseconds: float
    spread: float


def unsplit_varlen(interface: Any) -> Attend:
    """What the issue times: no splitting where there are as many key/value heads."""
    forward = flash_attn._plain(interface._flash_attn_varlen_forward)

    @cache
    def borders(length: int) -> Tensor:
        return torch.tensor([0, length], dtype=torch.int32, device="cuda")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengths = q.shape[1], k.shape[1]
        out, *_ = forward(
            q[0], k[0], v[0], *map(borders, lengths), *lengths, dropout_p=0.0, softmax_scale=SCALE, causal=True
        )
        return out[None]

    return attend


def own_splits(kernel: flash_attn.FlashAttn, splits: int) -> Attend:
    """flash-attn's own; 0: as many as it finds best."""
    return lambda q, k, v: kernel.forward_split(q, k, v, scale=SCALE, causal=True, splits=splits)[0]


def one_after_other(kernel: flash_attn.FlashAttn, splits: int) -> Attend:
    """The variant split_kv as it is measured: a kernel call a part, each joined to the running result."""
    options = split_kv.Parts(splits)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = k.shape[1] - q.shape[1]  # the queries are the last tokens
        rank = Rank(None, kernel, Precision(), DTYPE, Scores(SCALE), Visibility(True), first, "contiguous", options)  # type: ignore[arg-type]
        try:
            split_kv.SCHEDULE.forward(rank, q, k, v).send(None)
        except StopIteration as ended:
            return ended.value[0]
        raise RuntimeError("split_kv waits for nobody")

    return attend


def as_one_batch(kernel: flash_attn.FlashAttn, splits: int) -> Attend:
    """The parts as items of a batch in one unsplit call, joined at once in float32."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [x.view(splits, -1, *x.shape[2:]) for x in (k, v)]
        queries = q.expand(splits, -1, -1, -1)
        out, lse = kernel.forward_split(queries, *parts, scale=SCALE, causal=False, splits=1)
        weights = lse.softmax(0).transpose(1, 2)[..., None]
        return (weights * out).sum(0, keepdim=True).to(q.dtype)

    return attend


def candidates(kernel: flash_attn.FlashAttn, interface: Any) -> dict[str, Attend]:
    """By name, the unsplit kernel first."""
    found = {
        "flash_attn_with_kvcache, num_splits=1": own_splits(kernel, 1),
        "flash-attn varlen, as in #1029": unsplit_varlen(interface),
        "flash-attn dense, its own choice": lambda q, k, v: kernel.forward(
            q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype
        )[0],
        "flash_attn_with_kvcache, num_splits=0": own_splits(kernel, 0),
    }
    found |= {f"flash_attn_with_kvcache, num_splits={splits}": own_splits(kernel, splits) for splits in SPLITS}
    found |= {f"split_kv, {splits} calls": one_after_other(kernel, splits) for splits in OURS}
    return found | {f"{splits} parts as one batch, joined": as_one_batch(kernel, splits) for splits in OURS}


def timed(attend: Attend, q: Tensor, keys: list[tuple[Tensor, Tensor]]) -> Timed:
    """A call's time on the device, Python's share left out by a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for k, v in keys[:2]:
            attend(q, k, v)
    torch.cuda.current_stream().wait_stream(stream)
    calls = max(CALLS, len(keys))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            attend(q, *keys[call % len(keys)])
    graph.replay()
    times = [each * 1000 / calls for each in device_time.between_events(graph.replay, ROUNDS)]
    return Timed(statistics.median(times), max(times) / min(times))


def inputs(length: int, heads_kv: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """q, and as many k and v as do not fit the cache together."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(tokens: int, heads: int) -> Tensor:
        return torch.randn(1, tokens, heads, DIM, generator=generator, device="cuda", dtype=DTYPE)

    copies = -(-CACHE_BYTES // (2 * length * heads_kv * DIM * DTYPE.itemsize))
    return draw(1, HEADS), [(draw(length, heads_kv), draw(length, heads_kv)) for _ in range(copies + 1)]


def lines(length: int, heads_kv: int) -> Iterator[str]:
    """A setting's table."""
    kernel = flash_attn.KERNEL().build("cuda")
    q, keys = inputs(length, heads_kv)
    steps = candidates(kernel, flash_attn._interface())
    expected = next(iter(steps.values()))(q, *keys[0]).double()
    read = 2 * length * heads_kv * DIM * DTYPE.itemsize
    yield f"1 query, {length} keys, {HEADS}/{heads_kv} heads of {DIM}"
    first: Timed | None = None
    for name, attend in steps.items():
        error = float((attend(q, *keys[0]).double() - expected).norm() / expected.norm())
        if not error < CLOSE:
            yield f"  {name:40} {WRONG}: {error:.2g} away from the unsplit kernel"
            continue
        took = timed(attend, q, keys)
        first = first or took
        yield (
            f"  {name:40}{took.microseconds:9.1f} us {first.microseconds / took.microseconds:6.2f} x"
            f"{read / took.microseconds / 1e3:8.0f} GB/s   spread {took.spread:.2f}"
        )
    yield ""


def main() -> None:
    abilities = flash_attn.KERNEL().abilities("cuda" if torch.cuda.is_available() else "cpu")
    if abilities.missing:
        print(f"nothing to time: flash_attn {abilities.missing}")
        return
    arithmetic.make_exact()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: time of a call, times faster than unsplit\n")
    wrong = 0
    for heads_kv in HEADS_KV:
        for length in LENGTHS:
            for line in lines(length, heads_kv):
                print(line, flush=True)
                wrong += WRONG in line
    if wrong:
        raise SystemExit(f"{wrong} results are wrong: see above")


if __name__ == "__main__":
    main()
