"""The one-pass sum of blocks rounds exactly as adding one after another does."""

import pytest
import torch

block_sum = pytest.importorskip("accuracy.kernel.triton.block_sum", reason="needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU in triton's interpreter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 96, 128])
def test_every_bit_is_that_of_one_after_another(dim: int, dtype: torch.dtype) -> None:
    """On a slice of a larger sum, blocks that lie apart and are of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    total = torch.randn(2, 40, 3, dim, generator=generator).to(DEVICE)
    size = torch.tensor([1e3, 1.0, 1e-2, 3e2]).view(1, -1, 1, 1, 1)
    blocks = (torch.randn(2, 4, 20, 3, dim, generator=generator) * size).to(dtype).to(DEVICE)
    rows = slice(7, 27)
    expected, backwards = total.clone(), total.clone()
    for block in blocks.unbind(1):
        expected[:, rows] += block
    for block in blocks.flip(1).unbind(1):
        backwards[:, rows] += block
    assert block_sum.serves(total[:, rows], blocks)
    block_sum.add(total[:, rows], blocks)
    assert torch.equal(total, expected)
    assert not torch.equal(total, backwards)


def test_other_dtypes_are_left_to_torch() -> None:
    total, blocks = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 2, 1, 8)
    assert block_sum.serves(total, blocks)
    assert not block_sum.serves(total.double(), blocks)
    assert not block_sum.serves(total.bfloat16(), blocks)
    assert not block_sum.serves(total, blocks.double())
    assert not block_sum.serves(total, blocks.transpose(3, 4))
