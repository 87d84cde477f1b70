"""Ring attention: keys and values travel round the ranks, each rank joins the partials of the blocks it sees.

Liu et al. 2023 (arXiv 2310.01889), block for block as ring-flash-attention's `ring_flash_attn_func` runs it. `Ring`
serves every ring: `zigzag`, `striped` and `bpt_ring` differ in the blocks that a rank computes of a source's keys.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from accuracy.core.masks import Block
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors

Blocks = Callable[[Rank, int, int], list[Block]]
"""(rank, source of the keys, tokens a rank) -> the blocks that the rank computes of the source's keys, local."""


def sources(rank: Rank) -> Iterator[int]:
    """Whose keys are at hand at each step: one's own first, then those of the neighbour upstream, and so on."""
    return ((rank.world.rank - step * _distance(rank)) % rank.world.size for step in range(rank.world.size))


def _distance(rank: Rank) -> int:
    return 1 if rank.precision.ring_direction == "next" else -1


@dataclass(frozen=True)
class Ring(Schedule):
    """blocks: what a rank computes of a source's keys; by default the diagonal under the mask, everything before it in
    full, nothing after it, and less with windows or documents."""

    features: tuple[str, ...] = ("window", "documents", "softcap")
    forward_places: tuple[str, ...] = (
        "partial", "out_accumulator", "lse", "merge", "wire", "ring_direction", "ring_order",
    )  # fmt: skip
    backward_places: tuple[str, ...] = (
        "gradient_partial", "dq_accumulator", "dkv_accumulator", "wire", "gradient_wire", "ring_direction",
        "ring_order",
    )  # fmt: skip
    blocks: Blocks = Rank.blocks_between

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`. Each shift starts before the block is computed."""
        running = rank.running(q)
        diagonal_last = rank.precision.ring_order == "diagonal_last"
        own = k, v

        def join(source: int, k: Tensor, v: Tensor) -> None:
            for block in self.blocks(rank, source, q.shape[1]):
                rank.join(running, block, q, k.to(rank.dtype), v.to(rank.dtype))

        k, v = k.to(rank.place("wire")), v.to(rank.place("wire"))
        for step, source in enumerate(sources(rank)):
            arriving = rank.world.ring_shift((k, v), _distance(rank)) if step + 1 < rank.world.size else None
            if source != rank.world.rank:
                join(source, k, v)
            elif not diagonal_last:
                join(source, *own)
            if arriving is not None:
                k, v = await arriving
        if diagonal_last:
            join(rank.world.rank, *own)
        out, lse = running.result(rank.dtype, rank.lse_dtype)
        return out, lse

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`. dk and dv travel with the keys they belong to, one step behind, and end at home."""
        dq, dk, dv = (rank.accumulator(name, x) for name, x in (("dq", q), ("dk", k), ("dv", v)))
        diagonal_last = rank.precision.ring_order == "diagonal_last"
        own = k, v

        def gradients(source: int, k: Tensor, v: Tensor) -> list[tuple[slice, list[Tensor]]]:
            """Add to dq; dk and dv of each block, with the keys they are for."""
            found = []
            for block in self.blocks(rank, source, q.shape[1]):
                dq_block, *dkv_block = rank.differentiate(block, dout, q, k, v, out, lse)
                dq.add(block.query, dq_block)
                found.append((block.key, dkv_block))
            return found

        def add(found: list[tuple[slice, list[Tensor]]]) -> None:
            for key, (dk_block, dv_block) in found:
                dk.add(key, dk_block)
                dv.add(key, dv_block)

        async def receive(travelling: Awaitable[Tensors]) -> None:
            for total, received in zip((dk, dv), await travelling, strict=True):
                total.take(received)

        k, v = k.to(rank.place("wire")), v.to(rank.place("wire"))
        travelling = None
        for step, source in enumerate(sources(rank)):
            arriving = rank.world.ring_shift((k, v), _distance(rank)) if step + 1 < rank.world.size else None
            found = []
            if source != rank.world.rank:
                found = gradients(source, k.to(rank.dtype), v.to(rank.dtype))
            elif not diagonal_last:
                found = gradients(source, *own)
            if travelling is not None:
                await receive(travelling)
            add(found)
            if arriving is not None:
                k, v = await arriving
            if rank.world.size > 1:
                wire = rank.place("gradient_wire")
                travelling = rank.world.ring_shift((dk.value().to(wire), dv.value().to(wire)), _distance(rank))
        if travelling is not None:
            await receive(travelling)
        if diagonal_last:
            add(gradients(rank.world.rank, *own))
        return dq.value().to(rank.dtype), dk.value().to(rank.dtype), dv.value().to(rank.dtype)


SCHEDULE = Ring()
