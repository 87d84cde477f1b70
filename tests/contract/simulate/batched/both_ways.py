"""Simulated ranks both ways, batched and as coroutines, and the kernels that tests put on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.kernel.base import Kernel
from accuracy.runtime.sharding import cut
from accuracy.simulate import program
from accuracy.simulate.program import simulate
from accuracy.world.base import Tensors
from tests import measuring

CHUNKS = ("variant.bpt_ring.query_chunk=11", "variant.bpt_ring.key_chunk=7")
MASKS = {
    "causal": (),
    "full": ("problem.mask=full",),
    "window": ("problem.window=9",),
    "full_window": ("problem.mask=full", "problem.window=9"),
    "documents": ("problem.documents=25+16+19",),
}
POLICIES = {
    "published": (),
    "previous_last": ("ring_direction=previous", "ring_order=diagonal_last"),
    "logsumexp_last": ("merge=logsumexp", "ring_order=diagonal_last", "partial=float32"),
    "double_16_bit": ("merge=double", "out_accumulator=input", "lse=input", "dq_accumulator=input"),
    "compensated": ("merge=compensated", "out_accumulator=input", "dkv_accumulator=input"),
    "wires": ("wire=bfloat16", "gradient_wire=float16", "gradient_partial=float32"),
    "wires_8_bits": ("wire=float8_e4m3", "gradient_wire=float8_e5m2"),
    "wires_previous": ("wire=float32", "gradient_wire=input", "ring_direction=previous", "dkv_accumulator=float64"),
}
PAIRS = list(zip(POLICIES, cycle(MASKS)))  # every policy and every mask
WIDE = ("problem.heads=32", "problem.heads_kv=16", "problem.head_dim=4", "problem.batch=1")


def knobs(policy: str) -> list[str]:
    return [f"precision.{knob}" for knob in POLICIES[policy]]


def cases(*words: str) -> list[tuple[Case, list[Tensors]]]:
    """Every planned case that is not unsupported, with its shards."""
    by, found = measuring.pipeline(), []
    for case in measuring.cases(*measuring.TINY, "problem.seqlen=60", "unusable=record", *words):
        shards = (cut(x, case.variant.sharding, case.world_size) for x in by.targets(case).given.tensors)
        found.append((case, list(zip(*shards, strict=True))))
    assert found
    return found


def differing(case: Case, shards: Sequence[Tensors], kernel: Kernel | None = None) -> list[str]:
    """Where the two ways differ in a bit: rank and place of the tensor."""
    alone = simulate(case, shards, batched=False).results
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "BATCHED_DEVICES", ("cpu", "cuda"))
        batched = simulate(case, shards, kernel=kernel).results
    return [
        f"{case.variant.name} W={case.world_size} {case.dtype} rank {rank} tensor {place}"
        for rank, (mine, theirs) in enumerate(zip(alone, batched, strict=True))
        for place, (x, y) in enumerate(zip(mine, theirs, strict=True))
        if bits(x) != bits(y)
    ]


def bits(x: Tensor | None) -> bytes:
    """The bytes, the dtype's name and the shape: torch.equal would take -0 for 0."""
    if x is None:
        return b""
    data: bytes = x.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return f"{x.dtype} {tuple(x.shape)}".encode() + data


@dataclass
class Folding:
    """A kernel that takes up to `limit` calls as one and works through them item by item, as if nothing were folded."""

    kernel: Kernel
    limit: int
    most: int = 0

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        return min(calls, self.limit)

    def forward(self, *tensors: Tensor, **how: Any) -> Tensors:
        return self.each(self.kernel.forward, tensors, how)

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        return self.each(self.kernel.backward, tensors, how)

    def each(self, call: Callable[..., Tensors], tensors: Sequence[Tensor], how: dict[str, Any]) -> Tensors:
        self.most = max(self.most, len(tensors[0]))
        parts = [call(*(x[item : item + 1] for x in tensors), **how) for item in range(len(tensors[0]))]
        return tuple(torch.cat(same) for same in zip(*parts, strict=True))
