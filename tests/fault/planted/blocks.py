"""A rank computes other blocks of queries and keys, always or under a condition, in one direction or in both."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant import llama3
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.ring import Ring
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, on_rank, receiving, reported

TILE = 2048


class TopLeft(Visibility):
    """Of causal blocks, the first row sees the first key only."""

    def blocks(self, query: Range, key: Range) -> list[Block]:
        """See `Visibility.blocks`."""
        return [
            replace(each, key=slice(0, each.query.stop - each.query.start)) if each.causal else each
            for each in super().blocks(query, key)
        ]


def times(count: int, chosen: Callable[[Rank, int, int], bool]) -> Ring:
    """The ring that computes its blocks of the chosen (rank, source, tokens a rank) so many times."""

    def blocks(rank: Rank, source: int, length: int) -> list[Block]:
        return rank.blocks_between(source, length) * (count if chosen(rank, source, length) else 1)

    return Ring(blocks=blocks)


def each_block(change: Callable[[Rank, int, Block], Block]) -> Ring:
    """The ring that computes other blocks than its (rank, source, block)."""
    return Ring(
        blocks=lambda rank, source, length: [
            change(rank, source, block) for block in rank.blocks_between(source, length)
        ]
    )


def last_hop(rank: Rank, source: int, length: int) -> bool:
    """The keys that arrive last: those of the next rank, which under a causal mask only the last rank sees."""
    return source == (rank.world.rank + 1) % rank.world.size != rank.world.rank


def first_hop(rank: Rank, source: int, length: int) -> bool:
    """The keys that arrive first."""
    return source == (rank.world.rank - 1) % rank.world.size != rank.world.rank


def diagonal(rank: Rank, source: int, length: int) -> bool:
    """One's own keys."""
    return source == rank.world.rank


def without_last_key(block: Block) -> Block:
    """An off-by-one bound of a block, not causal."""
    return Block(block.query, slice(block.key.start, block.key.stop - 1), causal=False)


def one_key_of_the_first_rank(rank: Rank, source: int, block: Block) -> Block:
    """Other ranks never see the last key of rank 0."""
    if source > 0 or rank.world.rank == 0:
        return block
    return Block(block.query, slice(0, block.key.stop - 1), block.causal)


def one_tile(rank: Rank, source: int, block: Block) -> Block:
    """Keys of a full block beyond a bound are dropped."""
    return block if block.causal else replace(block, key=slice(block.key.start, min(block.key.stop, TILE)))


def swapped_masks(rank: Rank, source: int, block: Block) -> Block:
    """On the last rank the diagonal is full and the full blocks are causal."""
    last = rank.world.rank == rank.world.size - 1 > 0
    return Block(block.query, block.key, block.causal != last)


def other_hop(rank: Rank, source: int, length: int) -> list[Block]:
    """Another hop's mask on the keys at hand: one step behind."""
    size = rank.world.size
    return rank.blocks_between((source + 1) % size if source != rank.world.rank else source, length)


def other_visibility(**settings: Any) -> Callable[..., tuple[Any, ...]]:
    """A rank that takes the mask for another; window: so many tokens more than the right one."""

    def change(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
        new = dict(settings)
        if "window" in new:
            new["window"] += rank.visibility.window or 0
        return replace(rank, visibility=replace(rank.visibility, **new)), *tensors

    return change


def in_both(change: Callable[..., tuple[Any, ...]]) -> Schedule:
    """The ring that receives something else in both directions."""
    return receiving("forward", change, receiving("backward", change))


BLOCKS, MASK = ("blocks",), ("mask",)
BOTH = (*BLOCKS, *MASK)
WINDOW, DOCUMENTS = ("problem.window=20",), ("problem.documents=30+50+64",)
LONG = ("problem.seqlen=4112", "world_size=2", "problem.heads=1", "problem.heads_kv=1", "problem.head_dim=8",
        "dtype=[float32,float64]", "~also")  # fmt: skip
LAST_KEY = each_block(lambda rank, source, block: block if block.causal else without_last_key(block))
PARTS = {
    # flash-attention aligned fewer queries than keys at the top left before 2.1; the schedule means the bottom right
    "causal_bottom_right": reported(
        on_rank(llama3.SCHEDULE, lambda rank: replace(rank, visibility=TopLeft(rank.causal)), "forward", "backward"),
        "logic", EVERYTHING,
    ),
    # yunchang's FA3 wrapper: causal=False hard-coded, so future tokens leak, in forward and backward alike
    "diagonal_not_causal": reported(
        each_block(lambda rank, source, block: Block(block.query, block.key, causal=False)), "logic", EVERYTHING
    ),
    "dropped_key": reported(each_block(one_key_of_the_first_rank), "logic", EVERYTHING),  # invented; the least there is
    "blocks_last_hop_missing": Fault(times(0, last_hop), EVERYTHING, causes=BLOCKS),
    "blocks_last_hop_missing_forward": Fault(times(0, last_hop), EVERYTHING, way="forward", causes=BLOCKS),
    "blocks_last_hop_missing_backward": Fault(times(0, last_hop), GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_first_hop_twice": Fault(times(2, first_hop), EVERYTHING, causes=BLOCKS),
    "blocks_first_hop_twice_forward": Fault(times(2, first_hop), EVERYTHING, way="forward", causes=BLOCKS),
    "blocks_first_hop_twice_backward": Fault(times(2, first_hop), GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_diagonal_twice_backward": Fault(times(2, diagonal), GRADIENTS, way="backward", causes=BLOCKS),
    "blocks_odd_length": Fault(
        times(0, lambda rank, source, length: length % 2 == 1 and first_hop(rank, source, length)),
        EVERYTHING, where=("problem.seqlen=132",), causes=BLOCKS,
    ),
    "blocks_many_ranks": Fault(
        times(0, lambda rank, source, length: rank.world.size > 4 and last_hop(rank, source, length)),
        EVERYTHING, where=("world_size=[1,6]",), causes=BLOCKS,
    ),
    "blocks_long": Fault(each_block(one_tile), EVERYTHING, causes=BOTH, where=LONG),
    "blocks_masks_swapped_on_last_rank": Fault(each_block(swapped_masks), EVERYTHING, causes=BOTH),
    "blocks_mask_of_other_hop": Fault(Ring(blocks=other_hop), EVERYTHING, causes=BOTH),
    "mask_last_key": Fault(LAST_KEY, EVERYTHING, causes=BOTH),
    "mask_last_key_backward": Fault(LAST_KEY, GRADIENTS, way="backward", causes=BOTH),
    "mask_window_wider": Fault(in_both(other_visibility(window=1)), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_window_narrower": Fault(in_both(other_visibility(window=-1)), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_documents_ignored": Fault(in_both(other_visibility(documents=())), EVERYTHING, where=DOCUMENTS, causes=MASK),
    "mask_documents_ignored_backward": Fault(
        receiving("backward", other_visibility(documents=())), GRADIENTS, where=DOCUMENTS, causes=MASK
    ),
}  # fmt: skip
