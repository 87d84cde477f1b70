import pytest
import torch

from accuracy.core.sharding import SHARDINGS, segments
from accuracy.runtime.sharding import cut, join, token_map


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_join_undoes_cut(sharding: str) -> None:
    x = torch.randn(2, 24, 3, 5)
    for size in (1, 2, 3, 4):
        assert torch.equal(join(cut(x, sharding, size), sharding), x)
        assert sorted(token_map(sharding, 24, size).flatten().tolist()) == list(range(24))


def test_the_maps_are_the_published_ones_and_segments_are_runs_of_them() -> None:
    assert token_map("contiguous", 8, 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert token_map("zigzag", 8, 2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert token_map("striped", 8, 2).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for sharding in ("contiguous", "zigzag"):
        for rank, tokens in enumerate(token_map(sharding, 24, 3).tolist()):
            runs = (range(first, first + rows.stop - rows.start) for rows, first in segments(sharding, rank, 8, 3))
            assert [token for run in runs for token in run] == tokens
