"""What torch does in several passes has the same bits in one; on the CPU in triton's interpreter."""

import pytest
import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.simulate.batched.fold import Call
from accuracy.simulate.batched.key_group import KeyGroup
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
    """On slices of larger tensors, at gaps of lse from 0 to overflow, with infinities of empty partials; also where the
    partial before lies elsewhere, in fewer bits."""
    out, block_out = normal(0, 2, 300, 3, dim), normal(1, 2, 150, 3, dim).to(dtype)
    lse, block_lse = normal(2, 2, 300, 3, 1) * 30, (normal(3, 2, 3, 150, 1) * 30).transpose(1, 2)
    block_lse[:, 7] = -torch.inf
    block_lse[:, 9:60] *= normal(4, 2, 51, 3, 1) ** 5  # gaps that are dense around 0, and of hundreds
    block_lse[:, 8] = lse[:, 109]
    rows = slice(101, 251)
    assert one_pass.merges(out[:, rows], lse[:, rows], block_out, block_lse)
    for before in (out[:, rows], out[:, rows].to(dtype)):
        whole_out, whole_lse, found, found_lse = out.clone(), lse.clone(), out.clone(), lse.clone()
        whole_out[:, rows], whole_lse[:, rows] = sigmoid(before.float(), lse[:, rows], block_out, block_lse)
        of = found[:, rows] if before.dtype == torch.float32 else before
        one_pass.merge(found[:, rows], of, found_lse[:, rows], block_out, block_lse)
        assert torch.equal(found_lse, whole_lse)
        assert torch.equal(found, whole_out)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_blocks_have_the_bits_of_one_after_another(count: int) -> None:
    """Blocks that lie apart, as a grid of chunks gives them; in another order the bits are others."""
    out, lse = normal(2, 2, 90, 3, 64), normal(3, 2, 90, 3, 1)
    blocks = normal(4, 2, count, 40, 3, 64).bfloat16()
    lses = normal(5, 2, count, 3, 40).transpose(2, 3).unsqueeze(-1)
    rows, found = slice(17, 57), []
    for order in (range(count), range(count)[::-1]):
        expected, expected_lse = out[:, rows], lse[:, rows]
        for number in order:
            expected, expected_lse = sigmoid(expected, expected_lse, blocks[:, number], lses[:, number])
        found.append((expected, expected_lse))
    whole, whole_lse = out.clone(), lse.clone()
    one_pass.merge(whole[:, rows], whole[:, rows], whole_lse[:, rows], blocks, lses)
    assert torch.equal(whole[:, rows], found[0][0])
    assert torch.equal(whole_lse[:, rows], found[0][1])
    assert count == 1 or not torch.equal(whole[:, rows], found[1][0])
    assert torch.equal(whole[:, rows.stop :], out[:, rows.stop :])


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


@pytest.mark.stress(3, "dtype", "dim")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 96, 128])
def test_every_bit_of_a_sum_is_that_of_one_after_another(dim: int, dtype: torch.dtype) -> None:
    """On a slice of a larger sum, blocks that lie apart and are of very different sizes."""
    total, rows = normal(0, 2, 40, 3, dim), slice(7, 27)
    size = torch.tensor([1e3, 1.0, 1e-2, 3e2], device=DEVICE).view(1, -1, 1, 1, 1)
    blocks = (normal(1, 2, 4, 20, 3, dim) * size).to(dtype)
    expected, backwards = total.clone(), total.clone()
    for block, last in zip(blocks.unbind(1), blocks.flip(1).unbind(1), strict=True):
        expected[:, rows] += block
        backwards[:, rows] += last
    assert one_pass.adds(total[:, rows], blocks)
    one_pass.add(total[:, rows], blocks)
    assert torch.equal(total, expected)
    assert not torch.equal(total, backwards)


PARTS = range(1, 4), range(2, 4), range(3, 4)  # of ranks in three calls, two items each
CALLS = tuple(Call(KeyGroup(Block(slice(5, 10), slice(0, 5), causal=False)), ranks, 0, 9) for ranks in PARTS)
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
