import pytest
import torch

from accuracy.core.sharding import SHARDINGS, segments
from accuracy.runtime.sharding import cut, join, token_map


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_join_undoes_cut(sharding: str, size: int) -> None:
    x = torch.randn(2, 24, 3, 5)
    assert torch.equal(join(cut(x, sharding, size), sharding), x)
    assert sorted(token_map(sharding, 24, size).flatten().tolist()) == list(range(24))


def test_the_maps_are_the_published_ones() -> None:
    assert token_map("contiguous", 8, 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert token_map("zigzag", 8, 2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert token_map("striped", 8, 2).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag"])
def test_segments_are_runs_of_the_map(sharding: str) -> None:
    tokens = token_map(sharding, 24, 3)
    for rank in range(3):
        covered = [
            token
            for rows, first in segments(sharding, rank, 8, 3)
            for token in range(first, first + rows.stop - rows.start)
        ]
        assert covered == tokens[rank].tolist()
