"""Who sees whom: blocks of queries and keys that a kernel can compute, and how a rectangle falls into them.

Kernels know two masks: full, and causal aligned at the bottom right (the last query sees the last key), as
flash-attention since 2.1. Every block here is one of the two and has no row without a key.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Local query rows and key columns that meet in one kernel call."""

    query: slice
    key: slice
    causal: bool


def visible_blocks(query: tuple[int, int], key: tuple[int, int], causal: bool) -> list[Block]:
    """The blocks in which queries [a, b) see keys [c, d), all positions global; nothing is seen twice.

    Rows above the first key see none of them and are left out, as are keys behind the last row. What remains is a
    causal block, and below it, where rows come after the last key, a full one.
    """
    (first_row, end_row), (first_key, end_key) = query, key
    if not causal or first_row >= end_key - 1:
        return [Block(slice(*query), slice(*key), causal=False)]
    first_row, end_key = max(first_row, first_key), min(end_key, end_row)
    if first_row >= end_row:
        return []
    blocks = [Block(slice(first_row, end_key), slice(first_key, end_key), causal=True)]
    if end_key < end_row:
        blocks.append(Block(slice(end_key, end_row), slice(first_key, end_key), causal=False))
    return blocks
