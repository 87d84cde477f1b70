"""What torch does in several passes has the same bits in one; on the CPU in triton's interpreter."""

import pytest
import torch
from torch import Tensor

from accuracy.variant.join import sigmoid

one_pass = pytest.importorskip("accuracy.kernel.triton.one_pass", reason="needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 96, 128, 256])
def test_every_bit_is_that_of_the_torch_expression(dim: int, dtype: torch.dtype) -> None:
    """On slices of larger tensors, at gaps of lse from 0 to overflow, with infinities of empty partials."""
    out, block_out = normal(0, 2, 300, 3, dim), normal(1, 2, 150, 3, dim).to(dtype)
    lse, block_lse = normal(2, 2, 300, 3, 1) * 30, (normal(3, 2, 3, 150, 1) * 30).transpose(1, 2)
    block_lse[:, 7] = -torch.inf
    block_lse[:, 9:60] *= normal(4, 2, 51, 3, 1) ** 5  # gaps that are dense around 0, and of hundreds
    block_lse[:, 8] = lse[:, 109]
    rows = slice(101, 251)
    assert one_pass.merges(out[:, rows], lse[:, rows], block_out, block_lse)
    whole_out, whole_lse, found, found_lse = out.clone(), lse.clone(), out.clone(), lse.clone()
    whole_out[:, rows], whole_lse[:, rows] = sigmoid(out[:, rows], lse[:, rows], block_out, block_lse)
    one_pass.merge(found[:, rows], found_lse[:, rows], block_out, block_lse)
    assert torch.equal(found_lse, whole_lse)
    assert torch.equal(found, whole_out)


def test_other_dtypes_are_left_to_torch() -> None:
    merged = torch.zeros(1, 2, 1, 8)
    given = [merged, torch.zeros(1, 2, 1, 1), merged, torch.zeros(1, 2, 1, 1)]
    assert one_pass.merges(*given)
    for place in range(4):
        assert not one_pass.merges(*(x.double() if number == place else x for number, x in enumerate(given)))
