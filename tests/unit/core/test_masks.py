import itertools

import pytest
import torch

from accuracy.core.masks import Block, Visibility, keys_seen
from accuracy.reference.float64 import seen_keys


def seen(block: Block) -> torch.Tensor:
    """Which keys of a block each row sees, from the definition of a block."""
    rows, keys = block.query.stop - block.query.start, block.key.stop - block.key.start
    distance = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    left, right = block.window or (None, 0 if block.causal else None)
    return (distance >= (-keys - rows if left is None else -left)) & (
        distance <= (keys + rows if right is None else right)
    )


@pytest.mark.parametrize("documents", [(), (0, 3, 4, 8)])
@pytest.mark.parametrize("window", [None, 0, 2, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_windows_and_documents_tile_every_rectangle_exactly(causal, window, documents) -> None:
    length = 8
    position = torch.arange(length)
    distance = position - position[:, None]
    visible = (distance <= 0) if causal else torch.ones(length, length, dtype=torch.bool)
    visible &= (distance.abs() <= window) if window is not None else visible
    if documents:
        mine = torch.bucketize(position, torch.tensor(documents), right=True)
        visible &= mine == mine[:, None]
    ranges = list(itertools.combinations(range(length + 1), 2))
    for query, key in itertools.product(ranges, ranges):
        expected = torch.zeros(length, length, dtype=torch.int64)
        expected[slice(*query), slice(*key)] = visible[slice(*query), slice(*key)].long()
        covered = torch.zeros_like(expected)
        for block in Visibility(causal, window, documents).blocks(query, key):
            sees = seen(block)
            assert sees.any(1).all(), "a row without a key"
            if block.window:
                assert min(side or 0 for side in block.window) >= 0
                assert len(sees) <= len(sees[0]), "flash-attention takes a right side of as many keys for no limit"
            covered[block.query, block.key] += sees
        assert torch.equal(covered, expected), (query, key)


def test_a_window_that_hides_nothing_is_none() -> None:
    """Kernels without windows can do such blocks, and kernels with them round as if there were none."""
    for window, query, causal in ((3, (0, 4), True), (9, (4, 8), False)):
        (block,) = Visibility(causal=True, window=window).blocks(query, (0, 4))
        assert block == Block(slice(*query), slice(0, 4), causal=causal)


@pytest.mark.parametrize(
    "mask", ["full", "causal", "causal,window=2", "full,window=1,documents=3+2+4", "causal,documents=1+8"]
)
def test_keys_are_counted_as_the_reference_counts_them(mask: str) -> None:
    word, *settings = mask.split(",")
    given = dict(setting.split("=") for setting in settings)
    documents = [int(length) for length in given.get("documents", "9").split("+")]
    intervals = seen_keys(9, 9, word == "causal", False, int(given["window"]) if "window" in given else None, documents)
    assert [keys_seen(mask, query, 9, 9) for query in range(9)] == (intervals[:, 1] - intervals[:, 0]).tolist()
