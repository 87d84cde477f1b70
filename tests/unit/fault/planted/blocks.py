"""A rank computes other blocks of queries and keys, always or under a condition, in one direction or in both."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant import llama3
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.ring import Ring
from tests.unit.fault.planted.base import EVERYTHING, GRADIENTS, WAYS, Fault, on_rank, reported

TILE = 2048
Chosen = Callable[[Rank, int, int], bool]
"""(rank, source of the keys, tokens a rank) -> whether its blocks are other ones."""


class TopLeft(Visibility):
    """Of causal blocks, the first row sees the first key only."""

    def blocks(self, query: Range, key: Range) -> list[Block]:
        found = super().blocks(query, key)
        return [replace(each, key=slice(0, each.query.stop - each.query.start)) if each.causal else each
                for each in found]  # fmt: skip


def times(count: int, chosen: Chosen) -> Ring:
    """The ring that computes its chosen blocks so many times."""

    def blocks(rank: Rank, source: int, length: int) -> list[Block]:
        return rank.blocks_between(source, length) * (count if chosen(rank, source, length) else 1)

    return Ring(blocks=blocks)


def each_block(change: Callable[[Rank, int, Block], Block]) -> Ring:
    """The ring that computes other blocks than its (rank, source, block)."""

    def blocks(rank: Rank, source: int, length: int) -> list[Block]:
        return [change(rank, source, block) for block in rank.blocks_between(source, length)]

    return Ring(blocks=blocks)


def last_hop(rank: Rank, source: int, length: int) -> bool:
    """The keys that arrive last: those of the next rank, which under a causal mask only the last rank sees."""
    return source == (rank.world.rank + 1) % rank.world.size != rank.world.rank


def first_hop(rank: Rank, source: int, length: int) -> bool:
    return source == (rank.world.rank - 1) % rank.world.size != rank.world.rank


def without_last_key(block: Block) -> Block:
    return replace(block, key=slice(block.key.start, block.key.stop - 1))


def swapped_masks(rank: Rank, source: int, block: Block) -> Block:
    """On the last rank the diagonal is full and the full blocks are causal."""
    last = rank.world.rank == rank.world.size - 1 > 0
    return Block(block.query, block.key, block.causal != last)


def other_hop(rank: Rank, source: int, length: int) -> list[Block]:
    """Another hop's mask on the keys at hand: one step behind."""
    other = (source + 1) % rank.world.size if source != rank.world.rank else source
    return rank.blocks_between(other, length)


def seeing(*ways: str, wider: int = 0, **settings: Any) -> Schedule:
    """The ring whose rank takes the mask for another; wider: so many tokens more than the right window."""

    def change(rank: Rank) -> Rank:
        window = {"window": (rank.visibility.window or 0) + wider} if wider else {}
        return replace(rank, visibility=replace(rank.visibility, **settings, **window))

    return on_rank(change, *ways)


BLOCKS, MASK = ("blocks",), ("mask",)
BOTH = (*BLOCKS, *MASK)
WINDOW, DOCUMENTS = ("problem.window=20",), ("problem.documents=30+50+64",)
LONG = ("problem.seqlen=4112", "world_size=2", "problem.heads=1", "problem.heads_kv=1", "problem.head_dim=8",
        "dtype=[float32,float64]", "~also")  # fmt: skip
MISSING, TWICE = times(0, last_hop), times(2, first_hop)
LAST_KEY = each_block(lambda rank, source, block: block if block.causal else without_last_key(block))
ONE_TILE = each_block(  # keys of a full block beyond a bound are dropped
    lambda rank, source, block: block if block.causal
    else replace(block, key=slice(block.key.start, min(block.key.stop, TILE)))
)  # fmt: skip
PARTS = {
    # flash-attention aligned fewer queries than keys at the top left before 2.1; the schedule means the bottom right
    "causal_bottom_right": reported(
        on_rank(lambda rank: replace(rank, visibility=TopLeft(rank.causal)), *WAYS, schedule=llama3.SCHEDULE),
        "logic", EVERYTHING, "mask"),
    # yunchang's FA3 wrapper: causal=False hard-coded, so future tokens leak, in forward and backward alike
    "diagonal_not_causal": reported(
        each_block(lambda rank, source, block: Block(block.query, block.key, causal=False)), "logic", EVERYTHING, "mask"
    ),
    # invented; the least there is: other ranks never see the last key of rank 0
    "dropped_key": reported(
        each_block(lambda rank, source, block: without_last_key(block) if source == 0 < rank.world.rank else block),
        "logic", EVERYTHING, "mask"),
    "blocks_last_hop_missing": Fault(MISSING, EVERYTHING, causes=BLOCKS),
    "blocks_last_hop_missing_forward": Fault(MISSING, EVERYTHING, way="forward", causes=BLOCKS),
    "blocks_last_hop_missing_backward": Fault(MISSING, GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_first_hop_twice": Fault(TWICE, EVERYTHING, causes=BLOCKS),
    "blocks_first_hop_twice_forward": Fault(TWICE, EVERYTHING, way="forward", causes=BLOCKS),
    "blocks_first_hop_twice_backward": Fault(TWICE, GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_diagonal_twice_backward": Fault(
        times(2, lambda rank, source, length: source == rank.world.rank), GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_odd_length": Fault(
        times(0, lambda rank, source, length: length % 2 == 1 and first_hop(rank, source, length)),
        EVERYTHING, where=("problem.seqlen=132",), causes=BLOCKS),
    "blocks_many_ranks": Fault(
        times(0, lambda rank, source, length: rank.world.size > 4 and last_hop(rank, source, length)),
        EVERYTHING, where=("world_size=[1,6]",), causes=BLOCKS),
    "blocks_long": Fault(ONE_TILE, EVERYTHING, causes=BOTH, where=LONG),
    "blocks_masks_swapped_on_last_rank": Fault(each_block(swapped_masks), EVERYTHING, causes=BOTH),
    "blocks_mask_of_other_hop": Fault(Ring(blocks=other_hop), EVERYTHING, causes=BOTH),
    "mask_last_key": Fault(LAST_KEY, EVERYTHING, causes=BOTH),
    "mask_last_key_backward": Fault(LAST_KEY, GRADIENTS, way="backward", causes=BOTH),
    "mask_window_wider": Fault(seeing(*WAYS, wider=1), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_window_narrower": Fault(seeing(*WAYS, wider=-1), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_documents_ignored": Fault(seeing(*WAYS, documents=()), EVERYTHING, where=DOCUMENTS, causes=MASK),
    "mask_documents_ignored_backward": Fault(seeing("backward", documents=()), GRADIENTS, where=DOCUMENTS, causes=MASK),
}  # fmt: skip
