"""A block of queries and keys is missing or counted twice, always or under a condition, in one direction or in both."""

from collections.abc import Callable

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault

TILE = 2048


def times(count: int, chosen: Callable[[Rank, int, int], bool]) -> Ring:
    """The ring that computes its blocks of the chosen (rank, source, tokens a rank) so many times."""

    def blocks(rank: Rank, source: int, length: int) -> list[Block]:
        return rank.blocks_between(source, length) * (count if chosen(rank, source, length) else 1)

    return Ring(blocks=blocks)


def last_hop(rank: Rank, source: int, length: int) -> bool:
    """The keys that arrive last: those of the next rank, which under a causal mask only the last rank sees."""
    return source == (rank.world.rank + 1) % rank.world.size != rank.world.rank


def first_hop(rank: Rank, source: int, length: int) -> bool:
    """The keys that arrive first."""
    return source == (rank.world.rank - 1) % rank.world.size != rank.world.rank


def diagonal(rank: Rank, source: int, length: int) -> bool:
    """One's own keys."""
    return source == rank.world.rank


def tiles(rank: Rank, source: int, length: int) -> list[Block]:
    """Keys of a block beyond a bound are dropped."""
    return [
        Block(block.query, slice(block.key.start, min(block.key.stop, TILE)), block.causal)
        if not block.causal
        else block
        for block in rank.blocks_between(source, length)
    ]


def swapped_masks(rank: Rank, source: int, length: int) -> list[Block]:
    """On the last rank the diagonal is full and the full blocks are causal."""
    last = rank.world.rank == rank.world.size - 1 > 0
    return [Block(b.query, b.key, b.causal != last) for b in rank.blocks_between(source, length)]


def other_hop(rank: Rank, source: int, length: int) -> list[Block]:
    """Another hop's mask on the keys at hand: one step behind."""
    size = rank.world.size
    return rank.blocks_between((source + 1) % size if source != rank.world.rank else source, length)


BLOCKS = ("blocks",)
ODD, MANY = ("problem.seqlen=132",), ("world_size=[1,6]",)
PARTS = {
    "blocks_last_hop_missing": Fault(times(0, last_hop), EVERYTHING, causes=BLOCKS),
    "blocks_last_hop_missing_forward": Fault(times(0, last_hop), EVERYTHING, "forward", causes=BLOCKS),
    "blocks_last_hop_missing_backward": Fault(times(0, last_hop), GRADIENTS, "backward", causes=BLOCKS),
    "blocks_first_hop_twice": Fault(times(2, first_hop), EVERYTHING, causes=BLOCKS),
    "blocks_first_hop_twice_forward": Fault(times(2, first_hop), EVERYTHING, "forward", causes=BLOCKS),
    "blocks_first_hop_twice_backward": Fault(times(2, first_hop), GRADIENTS, "backward", causes=BLOCKS),
    "blocks_diagonal_twice_backward": Fault(times(2, diagonal), GRADIENTS, "backward", causes=BLOCKS),
    "blocks_odd_length": Fault(
        times(0, lambda rank, source, length: length % 2 == 1 and first_hop(rank, source, length)),
        EVERYTHING, where=ODD, causes=BLOCKS,
    ),
    "blocks_many_ranks": Fault(
        times(0, lambda rank, source, length: rank.world.size > 4 and last_hop(rank, source, length)),
        EVERYTHING, where=MANY, causes=BLOCKS,
    ),
    "blocks_long": Fault(
        Ring(blocks=tiles), EVERYTHING, causes=(*BLOCKS, "mask"),
        where=("problem.seqlen=4112", "world_size=2", "problem.heads=1", "problem.heads_kv=1", "problem.head_dim=8",
               "dtype=[float32,float64]", "~also"),
    ),
    "blocks_masks_swapped_on_last_rank": Fault(Ring(blocks=swapped_masks), EVERYTHING, causes=(*BLOCKS, "mask")),
    "blocks_mask_of_other_hop": Fault(Ring(blocks=other_hop), EVERYTHING, causes=(*BLOCKS, "mask")),
}  # fmt: skip
