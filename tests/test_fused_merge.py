"""The one-pass merge on CUDA rounds exactly as the torch expression that it stands for."""

import pytest
import torch

from accuracy.merge import sigmoid

fused_merge = pytest.importorskip("accuracy.fused_merge", reason="needs triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 96, 128, 256])
def test_every_bit_is_that_of_the_torch_expression(dim: int, dtype: torch.dtype) -> None:
    """On slices of larger tensors, at gaps of lse from 0 to overflow, with infinities of empty partials."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    out, block_out = normal(2, 300, 3, dim), normal(2, 150, 3, dim).to(dtype)
    lse, block_lse = normal(2, 300, 3, 1) * 30, normal(2, 150, 3, 1) * 30
    block_lse[:, 7] = -torch.inf
    rows = slice(101, 251)
    assert fused_merge.serves(out[:, rows], lse[:, rows], block_out)
    expected, _ = sigmoid(out[:, rows], lse[:, rows], block_out, block_lse)
    untouched = out.clone()
    fused_merge.update(out[:, rows], out[:, rows], torch.sigmoid(block_lse - lse[:, rows]), block_out)
    assert torch.equal(out[:, rows], expected)
    untouched[:, rows] = expected
    assert torch.equal(out, untouched)


def test_the_partial_before_may_lie_elsewhere_in_fewer_bits() -> None:
    before, block_out = (torch.randn(1, 64, 2, 128, device="cuda").bfloat16() for _ in range(2))
    out, weight = torch.full(before.shape, torch.nan, device="cuda"), torch.rand(1, 64, 2, 1, device="cuda")
    fused_merge.update(out, before, weight, block_out)
    assert torch.equal(out, before.float() - weight * (before.float() - block_out.float()))


def test_other_dtypes_are_left_to_torch() -> None:
    out, lse = torch.zeros(1, 2, 1, 8, device="cuda"), torch.zeros(1, 2, 1, 1, device="cuda")
    assert not fused_merge.serves(out.double(), lse, out)
    assert not fused_merge.serves(out, lse.double(), out)
    assert not fused_merge.serves(out, lse, out.double())
