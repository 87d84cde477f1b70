"""Ring attention: keys and values travel round the ranks, each rank joins the partials of the blocks it sees.

Liu et al. 2023 (arXiv 2310.01889), block for block as ring-flash-attention's `ring_flash_attn_func` runs it. The loop
serves every ring: `zigzag`, `striped` and `bpt_ring` differ in the blocks that a rank computes of a source's keys.
"""

from collections.abc import Awaitable, Iterator

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.masks import Block
from accuracy.core.precision import Precision
from accuracy.simulate.batched.plan import Blocks
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors

SHARDINGS = ("contiguous",)
FEATURES = ("window", "documents", "softcap")
PRECISION = Precision()
FORWARD_PLACES = ("partial", "out_accumulator", "lse", "merge", "wire", "ring_direction", "ring_order")
BACKWARD_PLACES = (
    "gradient_partial",
    "dq_accumulator",
    "dkv_accumulator",
    "wire",
    "gradient_wire",
    "ring_direction",
    "ring_order",
)


def unsupported(case: Case) -> str | None:
    """Runs everywhere."""
    return None


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """The diagonal under the mask, everything before it in full, nothing after it; less with windows or documents."""
    return rank.blocks_between(source, length)


RING_BLOCKS = blocks  # these loops over them, nothing else: a simulated world may run all ranks together


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Shards of q (B, S/W, H, D), k, v (B, S/W, Hk, D) -> out (B, S/W, H, D), lse (B, H, S/W)."""
    return await ring_forward(rank, blocks, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """Shards -> dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D)."""
    return await ring_backward(rank, blocks, dout, q, k, v, out, lse)


def sources(rank: Rank) -> Iterator[int]:
    """Whose keys are at hand at each step: one's own first, then those of the neighbour upstream, and so on."""
    return ((rank.world.rank - step * _distance(rank)) % rank.world.size for step in range(rank.world.size))


def _distance(rank: Rank) -> int:
    return 1 if rank.precision.ring_direction == "next" else -1


async def ring_forward(rank: Rank, blocks: Blocks, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The forward ring with any plan of blocks. Each shift starts before the block is computed."""
    running = rank.running(q)
    diagonal_last = rank.precision.ring_order == "diagonal_last"
    own = k, v

    def join(source: int, k: Tensor, v: Tensor) -> None:
        for block in blocks(rank, source, q.shape[1]):
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


async def ring_backward(
    rank: Rank, blocks: Blocks, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> Tensors:
    """The backward ring: dk and dv travel with the keys they belong to, one step behind, and end at home."""
    dq, dk, dv = (rank.accumulator(name, x) for name, x in (("dq", q), ("dk", k), ("dv", v)))
    diagonal_last = rank.precision.ring_order == "diagonal_last"
    own = k, v

    def gradients(source: int, k: Tensor, v: Tensor) -> list[tuple[slice, list[Tensor]]]:
        """Add to dq; dk and dv of each block, with the keys they are for."""
        found = []
        for block in blocks(rank, source, q.shape[1]):
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
