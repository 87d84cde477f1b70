"""Tensors are rounded to the nearest number, cut for ranks and joined again."""

import pytest
import torch

from accuracy.core.dtype import FORMATS
from accuracy.core.sharding import segments
from accuracy.runtime.rounding import round_to
from accuracy.runtime.sharding import token_map


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_just_above_a_tie_goes_up(dtype: str) -> None:
    """1 + u is a tie between 1 and 1 + 2u; a little more is none, though float32 cannot see it."""
    u, kind = FORMATS[dtype].unit_roundoff, getattr(torch, dtype)
    x = torch.tensor([1 + u + 2**-40, -(1 + u - 2**-40)], dtype=torch.float64)
    assert round_to(x, kind).tolist() == [1 + 2 * u, -1.0]
    assert float(x.to(kind)[0]) == 1.0  # what torch does, and why this file exists


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_neighbour_is_nearer_and_what_is_no_number_or_zero_stays(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded = round_to(x, kind)
    for toward in (-torch.inf, torch.inf):
        neighbour = torch.nextafter(rounded, torch.full_like(rounded, toward))
        assert ((x - rounded.double()).abs() <= (x - neighbour.double()).abs()).all()
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e300], dtype=torch.float64)
    assert torch.equal(round_to(x, kind).nan_to_num(nan=7.0), x.to(kind).nan_to_num(nan=7.0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_gpu_rounds_to_the_same_bits(dtype: str) -> None:
    """Numbers of all magnitudes, those below the normal ones of each format too."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**16, dtype=torch.float64, generator=generator) * 2.0 ** torch.linspace(-160, 120, 2**16).double()
    there = round_to(x.cuda(), getattr(torch, dtype)).cpu()
    assert torch.equal(there.double().view(torch.int64), round_to(x, getattr(torch, dtype)).double().view(torch.int64))


def test_the_maps_are_the_published_ones_and_segments_are_runs_of_them() -> None:
    assert token_map("contiguous", 8, 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert token_map("zigzag", 8, 2).tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert token_map("striped", 8, 2).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for sharding in ("contiguous", "zigzag"):
        for rank, tokens in enumerate(token_map(sharding, 24, 3).tolist()):
            runs = (range(first, first + rows.stop - rows.start) for rows, first in segments(sharding, rank, 8, 3))
            assert [token for run in runs for token in run] == tokens
