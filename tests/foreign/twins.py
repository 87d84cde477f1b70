"""The planted faults of `tests.fault` as strangers would have them: `TWINS`, a wrong step of a ring each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.foreign.functions import sdpa
from tests.foreign.ring import Steps, attend, shifted

EVERYTHING, GRADIENTS = "out lse dq dk dv", "dq dk dv"


@dataclass(frozen=True)
class Twin:
    """fn; wrong: the tensors that must be named; may: those that may be, too; causes: the families of hypotheses that
    may be proven; layout, ranks: how it is called; says: words of the sentence; free: settings
    that `diagnose` chooses, as the fault shows in some of them alone."""

    fn: Any
    wrong: str
    may: str = ""
    causes: Sequence[str] = ()
    layout: str = "bshd"
    ranks: tuple[int, ...] = (1, 4)
    says: str = ""
    free: tuple[str, ...] = ()


def ring(
    wrong: str,
    causes: Sequence[str] = (),
    /,
    *,
    may: str = "",
    says: str = "",
    free: tuple[str, ...] = (),
    **steps: Any,
) -> Twin:
    """The ring with some of its steps replaced; each is given what the right one is given."""
    return Twin(partial(attend, steps=Overridden(steps)), wrong, may, causes, says=says, free=free)


class Overridden(Steps):
    def __init__(self, steps: dict[str, Any]) -> None:
        vars(self).update(steps)


def from_first(hop: int, where: tuple[int, int, int]) -> bool:
    """Whether the keys are those of so many ranks before."""
    rank, size, source = where
    return size > 1 and (rank - source) % size == hop


def seen(where: tuple[int, int, int], causal: bool) -> int:
    return int(not causal or where[2] <= where[0])


def overflowing(out: Tensor, lse: Tensor, part: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    one, other = torch.exp(lse), torch.exp(block)  # no maximum is taken off
    mean = (out.transpose(1, 2) * one[..., None] + part.transpose(1, 2) * other[..., None]) / (one + other)[..., None]
    return mean.transpose(1, 2), torch.log(one + other)


def all_blocks(where: tuple[int, int, int], length: int, causal: bool, way: str) -> int:
    return 1


def count_of_block(count: int, hop: int, when: Any = lambda where, length: True) -> Any:
    """A block that counts so many times, where a condition holds."""

    def times(where: tuple[int, int, int], length: int, causal: bool, way: str) -> int:
        wrong = from_first(hop, where) and when(where, length)
        return seen(where, causal) * (count if wrong else 1)

    return times


def halves_swapped(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, torch.cat(lse.tensor_split(2, -1)[::-1], -1)


def first_item_s_keys(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q, k[:1].expand_as(k), v[:1].expand_as(v)  # a batch stride of 0


def whole_tiles(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dims = torch.arange(q.shape[-1]) < (q.shape[-1] // 32 * 32 or q.shape[-1])
    return q * dims, k, v


def reread(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().view(x.shape)


def off_by_one_rank(dq: Tensor, dk: Tensor, dv: Tensor, how: dict[str, Any]) -> tuple[Tensor, ...]:
    return dq, *shifted((dk, dv), how["group"])


class Late(Steps):
    """Once in so many calls a rank's first shift brings its own tensors."""

    calls = itertools.count(1)

    def received(self, mine: tuple[Tensor, ...], group: Any, hop: int, way: str) -> tuple[Tensor, ...]:
        found = super().received(mine, group, hop, way)
        late = hop == 0 and way == "forward" and torch.distributed.get_rank(group) == 1 and next(self.calls) % 200 == 0
        return mine if late else found


class NeverZeroed(Steps):
    """A sum goes on from where the last call of its shape ended."""

    sums: ClassVar[dict[Any, Tensor]] = {}

    def zeros(self, name: str, like: Tensor) -> Tensor:
        found = super().zeros(name, like)
        return self.sums.setdefault((name, found.shape, found.dtype), found) if name == "dq" else found

    def add(self, total: Tensor, x: Tensor) -> Tensor:
        kept = any(total is each for each in self.sums.values())
        return total.add_(x) if kept else total + x


def borders_ignored(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how: Any) -> Tensor:
    return sdpa(*(x.transpose(0, 1)[None] for x in (q, k, v)), **how)[0].transpose(0, 1)


BLOCKS, MASK = ("blocks", "pairs"), ("mask",)
RUN_TO_RUN = "run to run"
FEW_PAIRS = 2**18
"""In place of `config.resolve.MOST_PAIRS_AGAIN`: 7 runs again of each of four seeds, not the 230 that a race needs."""
TWINS = {
    "merge_overflow": ring(EVERYTHING, merge=overflowing),
    "merge_mean": ring("out", ("merge",), may=GRADIENTS, merge=lambda out, lse, part, block: (
        (out + part) / 2, torch.logaddexp(lse, block))),
    "lse_of_first_block": ring("lse", ("merge",), may=EVERYTHING, merge=lambda out, lse, part, block: (
        Steps().merge(out, lse, part, block)[0], lse)),
    "lse_of_other_half": ring(GRADIENTS, ("partial",), saved=halves_swapped),
    "lse_base_2": ring("lse", ("factor",), returned=lambda out, lse: (out, lse * 1.4426950408889634)),
    "empty_rows": ring("out dq dk", times=all_blocks),
    "one_rank_off": ring("dk dv", ("shard",), gradients=off_by_one_rank),
    "dk_dv_swapped": ring("dk dv", ("shard",), gradients=lambda dq, dk, dv, how: (dq, dv, dk)),
    "heads_modulo": ring(EVERYTHING, ("heads",), spread=lambda x, share: x.repeat(1, 1, share, 1),
                         gathered=lambda x, share: x.unflatten(2, (share, -1)).sum(2)),
    "scale_twice": ring(EVERYTHING, ("scale",), scale=lambda scale, way: scale**2 if way == "forward" else scale),
    "scale_missing_in_dq": ring("dq", ("scale", "factor"),
                                gradients=lambda dq, dk, dv, how: (dq / how["scale"], dk, dv)),
    "factor_dv": ring("dv", ("factor",), gradients=lambda dq, dk, dv, how: (dq, dk, dv * 1.01)),
    "factor_out_least": ring("out", ("factor",), returned=lambda out, lse: (out * (1 + 2**-10), lse)),
    "bf16_lse_saved": ring(GRADIENTS, ("cast",), saved=lambda out, lse: (out, lse.bfloat16().to(lse.dtype))),
    "bf16_sums": ring("dq dk dv", ("cast",), add=lambda total, x: (total + x).bfloat16().to(total.dtype)),
    "one_ahead": ring(EVERYTHING, MASK, hidden=lambda length: torch.ones(length, length, dtype=torch.bool).triu(2)),
    "out_transposed": ring("out", ("layout",), returned=lambda out, lse: (reread(out), lse)),
    "block_missing": ring(EVERYTHING, BLOCKS, times=count_of_block(0, 1)),
    "block_twice": ring(EVERYTHING, BLOCKS, times=count_of_block(2, 1)),
    "odd_length": ring(EVERYTHING, BLOCKS, says="only with", free=("seqlen",),
                       times=count_of_block(0, 1, lambda where, length: length % 2)),
    "odd_size": ring(EVERYTHING, BLOCKS, says="with 3 ranks (right with 1, 2 and 4)", free=("world_size",),
                     times=count_of_block(0, 1, lambda where, length: where[1] % 2)),
    "long": ring(EVERYTHING, BLOCKS, says="only with seqlen=2304", free=("seqlen",),
                 times=count_of_block(0, 1, lambda where, length: length * where[1] > 2048)),
    "second_of_batch": ring(EVERYTHING, ("shard",), says="only with batch=2", given=first_item_s_keys),
    "head_dim_40": ring(EVERYTHING, ("layout",), says="only with head_dim=40", free=("head_dim",), given=whole_tiles),
    "documents_ignored": Twin(borders_ignored, "out", GRADIENTS, (*MASK, *BLOCKS), "varlen", (1,), "borders of"),
    "race": Twin(partial(attend, steps=Late()), "out", EVERYTHING, says=RUN_TO_RUN),
    "sum_never_zeroed": Twin(partial(attend, steps=NeverZeroed()), "dq", says=RUN_TO_RUN),
}  # fmt: skip
