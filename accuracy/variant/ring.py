"""Ring attention: keys and values travel round the ranks, each rank joins the partials of the blocks it sees.

Liu et al. 2023 (arXiv 2310.01889), block for block as ring-flash-attention's `ring_flash_attn_func` runs it. `Ring` is
the schedule of every ring: `zigzag`, `striped` and `bpt_ring` differ in the blocks that a rank computes of a source's
keys. Real ranks and simulated ones on a CPU run it as it stands here. A simulated world on a GPU computes the same
blocks without coroutines (`accuracy.simulate.batched.ring`), those of several ranks in one kernel call where the kernel
says that this changes no bit.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from accuracy.core.masks import Block
from accuracy.core.sharding import UNEVEN
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.join import Accumulator
from accuracy.world.base import Tensors

Blocks = Callable[[Rank, int, int], list[Block]]
"""(rank, source of the keys, tokens of each rank) -> the blocks that the rank computes of the source's keys: slices of
its own queries and of the source's keys, counted within their shards."""

COPIED_ELEMENTS = 2**27
"""A simulated world copies at most this many elements (256 MiB in 16 bits) where one kernel call does several steps or
chunks of a ring."""


def distance(rank: Rank) -> int:
    """Return the direction of travel: 1 where keys and values go to the next rank, -1 where they go to the previous."""
    return 1 if rank.precision.ring_direction == "next" else -1


async def _turns(ring: "Ring", rank: Rank, k: Tensor, v: Tensor) -> AsyncIterator[tuple[list[Block], Tensor, Tensor]]:
    """Yield for each step the blocks that the rank computes, and the keys and values that it has now: its own at first,
    then its upstream neighbour's, ...

    The exchange of each step starts before the keys at hand are used. Shards of fewer tokens than the largest are
    filled up for it. A rank's own keys are never rounded for the wire. With
    `diagonal_last` the first step computes nothing, and one more step at the end computes the rank's own keys.
    """
    size, own, last = rank.world.size, rank.world.rank, rank.precision.ring_order == "diagonal_last"
    travelling: Tensors = tuple(rank.sent("wire", rank.widest(x)) for x in (k, v))
    for step in range(size):
        source = ring.source(rank, step)
        arriving = rank.world.exchange(travelling, *ring.hop(rank, step)) if step + 1 < size else None
        if source == own:
            yield [] if last else ring.blocks(rank, source, k.shape[1]), k, v
        else:
            yield ring.blocks(rank, source, k.shape[1]), travelling[0].to(rank.dtype), travelling[1].to(rank.dtype)
        if arriving is not None:
            travelling = await arriving
    if last:
        yield ring.blocks(rank, own, k.shape[1]), k, v


@dataclass(frozen=True)
class Ring(Schedule):
    """blocks: what a rank computes of a source's keys; by default the diagonal under the mask, everything before it in
    full, nothing after it, and less with windows or documents."""

    features: tuple[str, ...] = ("window", "documents", "softcap", "head_dim_v", "sinks")
    forward_places: tuple[str, ...] = (
        "partial", "out_accumulator", "lse", "merge", "wire", "ring_direction", "ring_order",
    )  # fmt: skip
    backward_places: tuple[str, ...] = (
        "gradient_partial", "dq_accumulator", "dkv_accumulator", "wire", "gradient_wire", "ring_direction",
        "ring_order",
    )  # fmt: skip
    low_wires: bool = True
    blocks: Blocks = Rank.blocks_between

    def source(self, rank: Rank, step: int) -> int:
        """Return the rank whose keys this rank has at a step."""
        return (rank.world.rank - step * distance(rank)) % rank.world.size

    def hop(self, rank: Rank, step: int) -> tuple[int, int]:
        """Return the rank that this rank sends to after a step, and the rank that it receives from."""
        own, size = rank.world.rank, rank.world.size
        return (own + distance(rank)) % size, (own - distance(rank)) % size

    def end_step(self, rank: Rank, step: int, sums: Sequence[Accumulator]) -> None:
        """Leave the sums dq, dk, dv as they are after a step of the backward; a subclass may change them."""

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""
        running = rank.running(q)
        async for found, k_there, v_there in _turns(self, rank, k, v):
            for block in found:
                rank.join(running, block, q, k_there, v_there)
        return running.result(rank.dtype, rank.lse_dtype)

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`. dk and dv travel with the keys they belong to, one step behind, and end at home."""
        like = {"dq": q, "dk": rank.widest(k), "dv": rank.widest(v)}
        dq, dk, dv = (rank.accumulator(name, x) for name, x in like.items())
        hops, step, travelling = rank.world.size if rank.world.size > 1 else 0, 0, None
        async for found, k_there, v_there in _turns(self, rank, k, v):
            gradients = []
            for block in found:
                dq_block, dk_block, dv_block = rank.differentiate(block, dout, q, k_there, v_there, out, lse)
                dq.add(block.query, dq_block)
                gradients.append((block.key, dk_block, dv_block))
            await _receive(travelling, dk, dv)
            for key, dk_block, dv_block in gradients:
                dk.add(key, dk_block)
                dv.add(key, dv_block)
            self.end_step(rank, step, (dq, dk, dv))
            travelling = None
            if step < hops:
                sums = tuple(rank.sent("gradient_wire", total.value()) for total in (dk, dv))
                travelling = rank.world.exchange(sums, *self.hop(rank, step))
            step += 1
        await _receive(travelling, dk, dv)
        return tuple(total.value()[:, : x.shape[1]].to(rank.dtype) for total, x in ((dq, q), (dk, k), (dv, v)))


async def _receive(travelling: Awaitable[Tensors] | None, *totals: Accumulator) -> None:
    if travelling is not None:
        for total, received in zip(totals, await travelling, strict=True):
            total.take(received)


SCHEDULE = Ring(shardings=("contiguous", UNEVEN))
