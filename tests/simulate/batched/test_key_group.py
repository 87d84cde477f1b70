"""Groups of blocks keep every row's and every key's order, and what cannot keep it stays as it was."""

import torch

from accuracy.core.masks import Block, Visibility
from accuracy.simulate.batched.key_group import KeyGroup, key_groups
from accuracy.variant.bpt import Chunks, pairs


def unfolded(found: tuple[KeyGroup, ...]) -> list[Block]:
    return [piece.block for group in found for piece in group.pieces(1)]


def met(blocks: list[Block], place: int, side: str) -> list[Block]:
    """The blocks that have a row (side query) or a key, in order."""
    return [block for block in blocks if getattr(block, side).start <= place < getattr(block, side).stop]


def test_every_row_and_key_meets_the_same_blocks_in_the_same_order() -> None:
    for visibility in (Visibility(True), Visibility(False), Visibility(True, 17), Visibility(True, None, (0, 31, 60))):
        blocks = pairs(Chunks(11, 7), visibility, (0, 60), (0, 60))
        sorted_blocks = unfolded(key_groups(blocks))
        assert len(sorted_blocks) == len(blocks)
        for place in range(60):
            for side in ("query", "key"):
                assert met(sorted_blocks, place, side) == met(blocks, place, side)


def test_full_blocks_below_each_other_are_one_group() -> None:
    found = key_groups(pairs(Chunks(10, 30), Visibility(False), (0, 60), (0, 60)))
    whole = [Block(slice(0, 60), slice(0, 30), False), Block(slice(0, 60), slice(30, 60), False)]
    assert [group.whole for group in found] == whole
    assert [group.count for group in found] == [6, 6]


def test_blocks_in_another_order_of_keys_are_left_alone() -> None:
    late, early = (Block(slice(0, 4), keys, False) for keys in (slice(4, 8), slice(0, 4)))
    assert unfolded(key_groups([late, early])) == [late, early]
    overlapping = [Block(slice(0, 4), slice(0, 4), False), Block(slice(4, 8), slice(2, 6), False)]
    assert [group.count for group in key_groups(overlapping)] == [1, 1]


def test_tensors_fold_and_join_back() -> None:
    group = KeyGroup(Block(slice(2, 5), slice(1, 3), False), 3)
    x, lse = torch.arange(2 * 12 * 2).view(2, 12, 2, 1), torch.arange(2 * 2 * 12).view(2, 2, 12)
    assert torch.equal(group.rows(x)[4], x[1, 5:8])
    assert torch.equal(group.keys(x)[4], x[1, 1:3])
    assert torch.equal(group.lse(lse)[4], lse[1, :, 5:8])
    assert torch.equal(group.joined_rows(group.rows(x)), x[:, 2:11])
    assert torch.equal(group.joined_lse(group.lse(lse)), lse[:, :, 2:11])
