"""What a direction receives or returns is changed: another scale, dtype, layout, factor, shard or partial."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.variant import ring, zigzag
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Results
from tests.unit.fault.planted.base import EVERYTHING, GRADIENTS, WAYS, Fault, changed, receiving, reported, returning

Change = Callable[[Tensor], Tensor]


def result(name: str, change: Change) -> Schedule:
    """The ring that returns one tensor changed, after its last rounding."""
    names = ("out", "lse") if name in ("out", "lse") else ("dq", "dk", "dv")

    def of_all(rank: Rank, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(change(x) if each == name else x for each, x in zip(names, tensors, strict=True))

    return returning("forward" if "out" in names else "backward", of_all)


def times(factor: float) -> Change:
    return lambda x: x * factor


def through(dtype: torch.dtype) -> Change:
    """Rounded to a dtype, whatever the inputs' is."""
    return lambda x: x.to(dtype).to(x.dtype)


def reread(x: Tensor) -> Tensor:
    """(B, H, S, D) in memory, read as (B, S, H, D): a transpose without its copy."""
    return x.transpose(1, 2).contiguous().view(x.shape)


def with_lse(change: Change, schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule whose backward receives lse changed."""
    return receiving(lambda rank, *all_: (rank, *all_[:-1], change(all_[-1])), "backward", schedule=schedule)


def with_scale(scale: Callable[[Rank, Tensor], float], *ways: str) -> Schedule:
    """The ring that takes `scale(rank, the first tensor)` for the softmax scale in these ways."""

    def receive(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
        return replace(rank, scores=replace(rank.scores, scale=scale(rank, tensors[0]))), *tensors

    return receiving(receive, *ways)


def default(rank: Rank, x: Tensor) -> float:
    """1 / sqrt(D), whatever was asked for."""
    return 1 / math.sqrt(x.shape[-1])


def of_rank(owner: Callable[[int, int], int], way: str, *which: int) -> Schedule:
    """The ring that returns some results of rank `owner(rank, size)` for its own."""

    async def exchanged(rank: Rank, *results: Tensor) -> tuple[Any, ...]:
        other = owner(rank.world.rank, rank.world.size)
        every = await rank.world.all_gather(results)
        return tuple(x[other] if number in which else results[number] for number, x in enumerate(every))

    return returning(way, exchanged)


def one_hop_less(rank: int, size: int) -> int:
    return (rank - 1) % size


def own_block(*names: str) -> Schedule:
    """The ring whose backward receives out, lse or both of a rank's own block for the final ones."""

    async def forward(self: Schedule, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
        (block,) = rank.blocks_between(rank.world.rank, q.shape[1])
        return *await ring.SCHEDULE.forward(rank, q, k, v), *rank.attend(block, q, k, v)

    async def backward(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        *shards, out, lse, own_out, own_lse = tensors
        final = own_out if "out" in names else out, own_lse.to(lse.dtype) if "lse" in names else lse
        return await ring.SCHEDULE.backward(rank, *shards, *final)

    return changed(ring.SCHEDULE, forward=forward, backward=backward)


CAST, FACTOR, LAYOUT, PARTIAL, SCALE, SHARD = (
    (family,) for family in ("cast", "factor", "layout", "partial", "scale", "shard")
)
ALONE = {"out": "out dq dk", "lse": "lse dq dk dv", "dq": "dq", "dk": "dk", "dv": "dv"}
"""What is wrong where one tensor is."""
PARTS = {
    # ring-flash-attention's ring_flash_attn.py, its PR #87: float16 and float32 runs have bfloat16 gradients
    "hard_coded_bf16_dq": reported(result("dq", through(torch.bfloat16)), "precision_floor", "dq", "cast"),
    # lucidrains' ring-attention-pytorch, commit 16fd91d: the sign of the exponent, sqrt(D) for 1 / sqrt(D)
    "wrong_scale_forward": reported(with_scale(lambda rank, x: 1 / rank.scale, "forward"), "logic", "out lse", "scale"),
    "cast_out": Fault(result("out", through(torch.bfloat16)), "out dq dk", causes=CAST),
    "cast_lse": Fault(result("lse", through(torch.float16)), "lse dq dk dv", causes=CAST),
    "cast_lse_saved": Fault(with_lse(through(torch.float16)), GRADIENTS, causes=CAST),
    **{f"factor_{name}": Fault(result(name, times(1.01)), wrong, causes=FACTOR) for name, wrong in ALONE.items()},
    "factor_dv_256th": Fault(result("dv", times(1 + 2**-8)), "dv", causes=FACTOR),
    **{
        f"layout_{name}": Fault(result(name, reread), wrong, causes=LAYOUT)
        for name, wrong in ALONE.items()
        if name != "lse"
    },
    "partial_lse": Fault(own_block("lse"), GRADIENTS, causes=PARTIAL),
    "partial_out": Fault(own_block("out"), "dq dk", causes=PARTIAL),
    "partial_out_and_lse": Fault(own_block("out", "lse"), GRADIENTS, causes=PARTIAL),
    "partial_lse_of_other_half": Fault(
        with_lse(lambda lse: torch.cat(lse.chunk(2, dim=-1)[::-1], dim=-1), zigzag.SCHEDULE), GRADIENTS),
    "scale_forward": Fault(with_scale(default, "forward"), EVERYTHING, causes=SCALE),
    "scale_backward": Fault(with_scale(default, "backward"), GRADIENTS, causes=SCALE),
    "scale_both": Fault(with_scale(default, *WAYS), EVERYTHING, causes=SCALE),
    "scale_missing_in_dq": Fault(
        returning("backward", lambda rank, dq, *kv: (dq / rank.scale, *kv)), "dq", causes=(*SCALE, *FACTOR)),
    "shard_dkv_shifted": Fault(of_rank(one_hop_less, "backward", 1, 2), "dk dv", causes=SHARD),
    "shard_dk_shifted": Fault(of_rank(one_hop_less, "backward", 1), "dk", causes=SHARD),
    # the ranks in the order of another ring direction
    "shard_dq_reversed": Fault(of_rank(lambda rank, size: size - 1 - rank, "backward", 0), "dq", causes=SHARD),
    # pairs of neighbours are swapped
    "shard_dkv_swapped": Fault(
        of_rank(lambda rank, size: min(rank ^ 1, size - 1), "backward", 1, 2), "dk dv", causes=SHARD),
    "shard_lse_shifted": Fault(of_rank(one_hop_less, "forward", 1), "lse dq dk dv", causes=SHARD),
    "shard_dk_is_dv": Fault(returning("backward", lambda rank, dq, dk, dv: (dq, dv, dk)), "dk dv"),
}  # fmt: skip
