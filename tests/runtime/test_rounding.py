import pytest
import torch

from accuracy.core.dtype import FORMATS
from accuracy.runtime.rounding import round_to


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_just_above_a_tie_goes_up(dtype: str) -> None:
    """1 + u is a tie between 1 and 1 + 2u; a little more is none, though float32 cannot see it."""
    u = FORMATS[dtype].unit_roundoff
    above, below = (torch.tensor([s * (1 + u + e)], dtype=torch.float64) for s, e in ((1, 2**-40), (-1, -(2**-40))))
    assert float(round_to(above, getattr(torch, dtype))) == 1 + 2 * u
    assert float(round_to(below, getattr(torch, dtype))) == -1.0
    assert float(above.to(getattr(torch, dtype))) == 1.0  # what torch does, and why this file exists


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_neighbour_is_nearer(dtype: str) -> None:
    x = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kind = getattr(torch, dtype)
    rounded = round_to(x, kind)
    for toward in (-torch.inf, torch.inf):
        neighbour = torch.nextafter(rounded, torch.full_like(rounded, toward))
        assert ((x - rounded.double()).abs() <= (x - neighbour.double()).abs()).all()


def test_what_is_no_number_or_zero_stays() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e300], dtype=torch.float64)
    assert torch.equal(round_to(x, torch.bfloat16).nan_to_num(nan=7.0), x.bfloat16().nan_to_num(nan=7.0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_gpu_rounds_to_the_same_bits(dtype: str) -> None:
    """Numbers of all magnitudes, those below the normal ones of each format too."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**16, dtype=torch.float64, generator=generator) * 2.0 ** torch.linspace(-160, 120, 2**16).double()
    there = round_to(x.cuda(), getattr(torch, dtype)).cpu()
    assert torch.equal(there.double().view(torch.int64), round_to(x, getattr(torch, dtype)).double().view(torch.int64))
