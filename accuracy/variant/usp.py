"""Unified sequence parallelism: a ring of ranks, each of which shares its heads with others by ulysses.

Fang and Zhao 2024 (arXiv 2405.07719), as yunchang's `LongContextAttention` runs it: W ranks are R rings' places times U
neighbours. Neighbours exchange tokens for heads, so that each holds the tokens of its place in the ring for 1/U of the
heads; the ranks with the same heads are a ring. Shards are contiguous here, and are exchanged for those of the ring.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import OneOf, Whole
from accuracy.variant import ulysses, zigzag
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors, Transfer, World


@dataclass(frozen=True)
class Group:
    """A member's view: the operations of `accuracy.world.base.World` that a ring and a head exchange need."""

    world: World
    members: Sequence[int]

    @property
    def rank(self) -> int:
        """The member's place."""
        return self.members.index(self.world.rank)

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.members)

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """See `World.exchange`."""
        return self.world.exchange(tensors, self.members[to], self.members[source])

    def all_to_all(self, tensors: Sequence[Tensor]) -> Awaitable[Tensors]:
        """See `World.all_to_all`: one exchange with each other member."""
        own, size = self.rank, self.size
        pairs = [((own + hop) % size, (own - hop) % size) for hop in range(1, size)]
        arriving = {source: self.exchange([x[to] for x in tensors], to, source) for to, source in pairs}

        async def received() -> Tensors:
            parts = {own: tuple(x[own] for x in tensors)}
            for source, transfer in arriving.items():
                parts[source] = await transfer
            return tuple(torch.stack(same) for same in zip(*(parts[place] for place in range(size)), strict=True))

        return received()


RINGS = {"contiguous": Ring(), "zigzag": Ring(blocks=zigzag.blocks)}


@dataclass(frozen=True)
class Options:
    """ulysses_ranks: U, neighbours that share heads; it divides the world size, whose other factor is the ring's. ring:
    the order of its chunks, contiguous or zigzag (of an even U)."""

    ulysses_ranks: Whole = 2
    ring: Annotated[str, OneOf(*RINGS)] = "zigzag"

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.ring == "zigzag" and self.ulysses_ranks % 2:
            raise ValueError(
                f"ulysses_ranks={self.ulysses_ranks} is odd: half a zigzag chunk would go to one rank; use an even one"
                " or ring=contiguous"
            )


class Usp(Schedule):
    """Tokens for heads among neighbours, a ring across, and back."""

    def unsupported(self, case: Case) -> str | None:
        """U divides a world size above 1, and heads as for ulysses."""
        size = int(dict(case.variant.options).get("ulysses_ranks") or 1)
        if case.world_size == 1:
            return None
        if case.world_size % size:
            return f"usp has ulysses_ranks={size} ranks in a row, which must divide world_size={case.world_size}"
        return ulysses.heads_unsupported("usp", size, case.problem)

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""
        row, column, there, back = _grid(rank)
        q, k, v = await rank.world.exchange((q, k, v), *there)
        q, k, v = await ulysses.to_heads(row, q, *ulysses.one_per_rank(row, k, v))
        out, lse = await RINGS[rank.options.ring].forward(column, q, k, v)
        (out,) = await ulysses.to_tokens(row, rank.place("wire"), out)
        (lse,) = await ulysses.to_tokens(row, rank.lse_dtype, lse.transpose(1, 2).unsqueeze(-1))
        out, lse = await rank.world.exchange((out, lse), *back)
        return out.to(rank.dtype), lse.squeeze(-1).transpose(1, 2).contiguous()

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`."""
        row, column, there, back = _grid(rank)
        heads_kv = k.shape[2]
        dout, q, k, v, out, lse = await rank.world.exchange((dout, q, k, v, out, lse), *there)
        dout, q, out, k, v = await ulysses.to_heads(row, dout, q, out, *ulysses.one_per_rank(row, k, v))
        lse = await ulysses.lse_to_heads(row, lse)
        gradients = await RINGS[rank.options.ring].backward(column, dout, q, k, v, out, lse)
        dq, dk, dv = await ulysses.to_tokens(row, rank.dtype, *gradients)
        dk, dv = (ulysses.sum_copies(rank, x, heads_kv) for x in (dk, dv))
        return await rank.world.exchange((dq, dk, dv), *back)


def _grid(rank: Rank) -> tuple[Rank, Rank, tuple[int, int], tuple[int, int]]:
    """The rank among its neighbours, and in its ring; whom its shard goes to and whose it gets, there and back."""
    size, own = rank.world.size, rank.world.rank
    neighbours = 1 if size == 1 else rank.options.ulysses_ranks
    place, column = divmod(own, neighbours)
    parts = _parts(size, neighbours, rank.options.ring)
    row: Any = Group(rank.world, range(place * neighbours, (place + 1) * neighbours))
    ring: Any = Group(rank.world, range(column, size, neighbours))
    there = parts.index(own), parts[own]
    return replace(rank, world=row), replace(rank, world=ring, sharding=rank.options.ring), there, there[::-1]


def _parts(size: int, neighbours: int, ring: str) -> list[int]:
    """Which contiguous shard each rank works on: of a zigzag ring half of its neighbours have the front chunk's parts,
    half the mirrored one's."""
    if ring == "contiguous" or size == 1:
        return list(range(size))
    half = neighbours // 2
    return [
        part
        for place in range(size // neighbours)
        for chunk in (place, 2 * (size // neighbours) - 1 - place)
        for part in range(chunk * half, (chunk + 1) * half)
    ]


SCHEDULE = Usp(
    features=("window", "documents", "softcap", "head_dim_v", "sinks"),
    forward_places=Ring.forward_places,
    backward_places=Ring.backward_places,
    options=Options,
    traced=False,
)
