"""Blocks cover what queries may see, once, and no row of a block is without a key."""

import itertools

import pytest
import torch

from accuracy.masks import visible_blocks


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_tile_every_rectangle_exactly(causal: bool) -> None:
    length = 7
    ranges = [(a, b) for a, b in itertools.combinations(range(length + 1), 2)]
    for query, key in itertools.product(ranges, ranges):
        expected = torch.zeros(length, length, dtype=torch.int64)
        expected[slice(*query), slice(*key)] = 1
        if causal:
            expected = expected.tril()
        covered = torch.zeros_like(expected)
        for block in visible_blocks(query, key, causal):
            rows, keys = block.query.stop - block.query.start, block.key.stop - block.key.start
            assert rows > 0
            assert keys > 0
            seen = torch.ones(rows, keys, dtype=torch.int64)
            if block.causal:
                assert rows <= keys  # bottom-right alignment leaves no row empty
                seen = seen.tril(keys - rows)
            covered[block.query, block.key] += seen
        assert torch.equal(covered, expected), (query, key)
