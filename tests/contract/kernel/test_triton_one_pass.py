"""What torch does in several passes has the same bits in one; on the CPU in triton's interpreter."""

import pytest
import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.simulate.batched.fold import Call
from accuracy.simulate.batched.listed import Side, begun, places
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
    merged, total, blocks = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 2, 1, 8)
    given = [merged, torch.zeros(1, 2, 1, 1), merged, torch.zeros(1, 2, 1, 1)]
    assert one_pass.merges(*given)
    for place in range(4):
        assert not one_pass.merges(*(x.double() if number == place else x for number, x in enumerate(given)))
    assert one_pass.adds(total, blocks)
    for other in ((total.double(), blocks), (total.bfloat16(), blocks), (total, blocks.double())):
        assert not one_pass.adds(*other)
    assert not one_pass.adds(total, blocks.transpose(3, 4))


PARTS = range(1, 4), range(2, 4), range(3, 4)  # of ranks in three calls, two items each
CALLS = tuple(Call(Block(slice(5, 10), slice(0, 5), causal=False), ranks, 0, 9) for ranks in PARTS)
SIDE = Side(keys=False, size=4, batch=2, length=10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_bit_of_a_sum_of_listed_blocks_is_that_of_one_after_another(dtype: torch.dtype) -> None:
    """What nothing is added to keeps its -0."""
    total, blocks = normal(0, 8, 10, 3, 16), normal(1, 12, 5, 3, 16).to(dtype)
    total[:2] = -0.0
    expected = total.clone()
    for part, some in zip(PARTS, blocks.split([6, 4, 2]), strict=True):
        expected[2 * part.start : 2 * part.stop, 5:] += some
    listed, unit = places(CALLS, SIDE, total.device)
    one_pass.add_listed(total.view(-1, unit, 3, 16), blocks, listed)
    assert torch.equal(total.view(torch.int32), expected.view(torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [16, 96])
def test_every_bit_of_listed_merges_is_that_of_one_after_another(dim: int, dtype: torch.dtype) -> None:
    """As above; the last five rows of rank 3 hold nothing before, whatever lies there, and those of rank 0 stay so."""
    out, lse = normal(0, 8, 10, 3, dim), normal(1, 8, 10, 3, 1) * 9
    out[6:, 5:], lse[6:, 5:] = torch.nan, -torch.inf
    blocks, lses = normal(2, 12, 5, 3, dim).to(dtype), normal(3, 12, 3, 5) * 9
    expected, expected_lse, begin = out.clone(), lse.clone(), 0
    for part in PARTS:
        for item in range(2 * part.start, 2 * part.stop):
            block = blocks[begin].float(), lses[begin].t().unsqueeze(-1)
            rows = expected[item, 5:], expected_lse[item, 5:]
            first = item >= 6 and part.start == 1
            expected[item, 5:], expected_lse[item, 5:] = block if first else sigmoid(*rows, *block)
            begin += 1
    listed, unit = places(CALLS, SIDE, out.device)
    seen = begun((b"\1" * 10, b"\1" * 10, b"\1" * 10, b"\1" * 5 + b"\0" * 5), 2, unit, out.device)
    one_pass.merge_listed(out.view(-1, unit, 3, dim), lse.view(-1, unit, 3, 1), blocks, lses, listed, seen)
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(lse, expected_lse)
