"""Columns of blocks keep every row's and every key's order, and what cannot keep it stays as it was."""

import torch

from accuracy.core.masks import Block, Visibility
from accuracy.simulate.batched.column import Column, columns
from accuracy.variant.bpt import Options, pairs


def unfolded(found: tuple[Column, ...]) -> list[Block]:
    return [piece.block for column in found for piece in column.pieces(1)]


def met(blocks: list[Block], place: int, side: str) -> list[Block]:
    """The blocks that have a row (side query) or a key, in order."""
    return [block for block in blocks if getattr(block, side).start <= place < getattr(block, side).stop]


def test_every_row_and_key_meets_the_same_blocks_in_the_same_order() -> None:
    for visibility in (Visibility(True), Visibility(False), Visibility(True, 17), Visibility(True, None, (0, 31, 60))):
        blocks = pairs(Options(11, 7), visibility, (0, 60), (0, 60))
        sorted_blocks = unfolded(columns(blocks))
        assert len(sorted_blocks) == len(blocks)
        for place in range(60):
            for side in ("query", "key"):
                assert met(sorted_blocks, place, side) == met(blocks, place, side)


def test_full_blocks_below_each_other_are_one_column() -> None:
    found = columns(pairs(Options(10, 30), Visibility(False), (0, 60), (0, 60)))
    whole = [Block(slice(0, 60), slice(0, 30), False), Block(slice(0, 60), slice(30, 60), False)]
    assert [column.whole for column in found] == whole
    assert [column.count for column in found] == [6, 6]


def test_blocks_in_another_order_of_keys_are_left_alone() -> None:
    late, early = (Block(slice(0, 4), keys, False) for keys in (slice(4, 8), slice(0, 4)))
    assert unfolded(columns([late, early])) == [late, early]
    overlapping = [Block(slice(0, 4), slice(0, 4), False), Block(slice(4, 8), slice(2, 6), False)]
    assert [column.count for column in columns(overlapping)] == [1, 1]


def test_tensors_fold_and_join_back() -> None:
    column = Column(Block(slice(2, 5), slice(1, 3), False), 3)
    x, lse = torch.arange(2 * 12 * 2).view(2, 12, 2, 1), torch.arange(2 * 2 * 12).view(2, 2, 12)
    assert torch.equal(column.rows(x)[4], x[1, 5:8])
    assert torch.equal(column.keys(x)[4], x[1, 1:3])
    assert torch.equal(column.lse(lse)[4], lse[1, :, 5:8])
    assert torch.equal(column.joined_rows(column.rows(x)), x[:, 2:11])
    assert torch.equal(column.joined_lse(column.lse(lse)), lse[:, :, 2:11])
