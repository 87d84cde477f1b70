"""Inference with a cache of keys and values: decoding, chunked prefill, going on behind a cached prefix; forward only.

Queries come in steps, and each step is computed with the keys up to its last query, as it would be from a cache. A
step of 1 is decoding, one of many a chunk of a prefill; the first step may be a prefix that was computed before. A
step's keys are one kernel call, or one a page or part, whose partials are joined by their lse, as a paged kernel does
that walks its table of blocks (Kwon et al. 2023, arXiv 2309.06180). `precision.wire` is the dtype of what is cached,
also float8_e4m3 and float8_e5m2 with a float32 scale a head, as an engine's FP8 cache has them; kernels read it in the
inputs' dtype.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from accuracy.core.dtype import FromZero, Whole
from accuracy.variant.base import ForwardOnly, Rank
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Cache:
    """chunk: queries of a step, 0: all that are left; prefix: tokens of the first step, 0: as all others; page: keys of
    a kernel call, 0: all of a step; splits: into how many parts a step's keys are cut instead, at most one a key."""

    chunk: FromZero = 1
    prefix: FromZero = 0
    page: FromZero = 0
    splits: Whole = 1

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.page and self.splits > 1:
            raise ValueError(f"page={self.page} with splits={self.splits}; give one of them")

    def steps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The positions [begin, end) of the queries of each step; those of all are [first, end)."""
        begin = min(max(first, self.prefix), end)
        borders = [first, *range(begin, end, self.chunk or max(1, end - begin)), end]
        return list(pairwise(dict.fromkeys(borders)))

    def parts(self, keys: int) -> Iterator[tuple[int, int]]:
        """The keys [begin, end) of each kernel call of a step that sees `keys`."""
        count = min(self.splits, keys)
        equal = [part * keys // count for part in range(count)]
        return pairwise([*(range(0, keys, self.page) if self.page else equal), keys])


class Cached(ForwardOnly):
    """A step after the other; each query is in one."""

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """q (B, Sq, H, D), the last Sq of the keys' positions but for a mask aligned elsewhere; k, v (B, S, Hk, D)."""
        cache: Cache = rank.options
        k, v = (rank.sent("wire", x).to(rank.dtype) for x in (k, v))
        first, found = rank.query_offset, []
        for begin, end in cache.steps(first, first + q.shape[1]):
            seen = end if rank.causal else k.shape[1]
            rows = q[:, begin - first : end - first]
            running = rank.running(rows)
            for part in cache.parts(seen):
                for block in rank.visibility.blocks((begin, end), part):
                    rank.join(running, block.shifted(begin, 0), rows, k[:, :seen], v[:, :seen])
            found.append(running.result(rank.dtype, rank.lse_dtype))
        return torch.cat([out for out, _ in found], 1), torch.cat([lse for _, lse in found], 2)


SCHEDULE = Cached(
    features=("cross_lengths", "window", "documents", "softcap", "head_dim_v"),
    forward_places=("partial", "out_accumulator", "lse", "merge", "wire"),
    low_wires=True,
    one_device=True,
    traced=False,
    options=Cache,
)
