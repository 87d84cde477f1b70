"""Which pairs a stripe's blocks hold, token by token."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from accuracy.core.masks import Block, Visibility
from accuracy.variant import striped


def pairs(block: Block) -> torch.Tensor:
    """Which keys of a block each row sees, from the definition of a block."""
    rows, keys = block.query.stop - block.query.start, block.key.stop - block.key.start
    distance = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    left, right = block.window or (None, 0 if block.causal else None)
    return (distance >= -(rows + keys if left is None else left)) & (distance <= (keys if right is None else right))


@pytest.mark.parametrize("documents", [(), (3,), (1, 4)])
@pytest.mark.parametrize("window", [None, 0, 1, 2, 5, 9])
@pytest.mark.parametrize("causal", [True, False])
def test_windows_and_documents_are_each_pair_once_whatever_the_ranks(causal: bool, window, documents) -> None:
    for size, length in itertools.product((2, 3, 4), (3, 5)):
        tokens = size * length
        visibility = Visibility(causal, window, (0, *documents, tokens) if documents else ())
        held = torch.zeros(tokens, tokens, dtype=torch.int64)
        for own, source in itertools.product(range(size), repeat=2):
            rank = SimpleNamespace(visibility=visibility, causal=causal, world=SimpleNamespace(rank=own, size=size))
            for block in striped.blocks(rank, source, length):
                seen = pairs(block)
                assert seen.any(1).all(), "a row without a key"
                rows, keys = torch.arange(own, tokens, size)[block.query], torch.arange(source, tokens, size)[block.key]
                held[rows[:, None], keys] += seen
        expected = torch.zeros_like(held)
        for token in range(tokens):
            expected[token, slice(*visibility.interval(token, tokens))] = 1
        assert torch.equal(held, expected), (size, length)
