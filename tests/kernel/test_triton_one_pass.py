import pytest
import torch

from accuracy.core.masks import Block
from accuracy.simulate.batched.fold import Call
from accuracy.simulate.batched.key_group import KeyGroup
from accuracy.simulate.batched.listed import Side, begun, places
from accuracy.variant.join import sigmoid

one_pass = pytest.importorskip("accuracy.kernel.triton.one_pass", reason="needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU in triton's interpreter


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 96, 128, 256])
def test_every_bit_is_that_of_the_torch_expression(dim: int, dtype: torch.dtype) -> None:
    """On slices of larger tensors, at gaps of lse from 0 to overflow, with infinities of empty partials."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    out, block_out = normal(2, 300, 3, dim), normal(2, 150, 3, dim).to(dtype)
    lse, block_lse = normal(2, 300, 3, 1) * 30, (normal(2, 3, 150, 1) * 30).transpose(1, 2)
    block_lse[:, 7] = -torch.inf
    block_lse[:, 8] = lse[:, 109]
    rows = slice(101, 251)
    assert one_pass.merges(out[:, rows], lse[:, rows], block_out, block_lse)
    expected = sigmoid(out[:, rows], lse[:, rows], block_out, block_lse)
    whole_out, whole_lse = out.clone(), lse.clone()
    one_pass.merge(out[:, rows], out[:, rows], lse[:, rows], block_out, block_lse)
    whole_out[:, rows], whole_lse[:, rows] = expected
    assert torch.equal(lse, whole_lse)
    assert torch.equal(out, whole_out)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_blocks_have_the_bits_of_one_after_another(count: int) -> None:
    """Blocks that lie apart, as a grid of chunks gives them; in another order the bits are others."""
    generator = torch.Generator("cuda").manual_seed(2)
    out, lse = (torch.randn(2, 90, 3, dim, generator=generator, device="cuda") for dim in (64, 1))
    blocks = torch.randn(2, count, 40, 3, 64, generator=generator, device="cuda").bfloat16()
    lses = torch.randn(2, count, 3, 40, generator=generator, device="cuda").transpose(2, 3).unsqueeze(-1)
    rows, found = slice(17, 57), {}
    for name, order in (("forwards", list(range(count))), ("backwards", list(range(count))[::-1])):
        expected, expected_lse = out[:, rows], lse[:, rows]
        for number in order:
            expected, expected_lse = sigmoid(expected, expected_lse, blocks[:, number], lses[:, number])
        found[name] = expected, expected_lse
    whole, whole_lse = out.clone(), lse.clone()
    one_pass.merge(whole[:, rows], whole[:, rows], whole_lse[:, rows], blocks, lses)
    assert torch.equal(whole[:, rows], found["forwards"][0])
    assert torch.equal(whole_lse[:, rows], found["forwards"][1])
    assert count == 1 or not torch.equal(whole[:, rows], found["backwards"][0])
    assert torch.equal(whole[:, rows.stop :], out[:, rows.stop :])


@pytest.mark.gpu
def test_every_gap_has_the_bits_of_torch() -> None:
    """A million gaps from -700 to 700, dense around 0. Beside an lse of 1, not 0: the kernel takes exponentials below
    1.2e-38 for 0, which only an lse as small could tell."""
    generator = torch.Generator("cuda").manual_seed(1)
    gaps = torch.randn(1, 2**18, 4, 1, generator=generator, device="cuda") ** 5 / 4
    lse, out = torch.ones_like(gaps), torch.zeros(1, 2**18, 4, 8, device="cuda")
    block_out = torch.randn(1, 2**18, 4, 8, generator=generator, device="cuda").bfloat16()
    expected_out, expected_lse = sigmoid(out, lse, block_out, lse + gaps)
    one_pass.merge(out, out, lse, block_out, lse + gaps)
    assert torch.equal(lse, expected_lse)
    assert torch.equal(out, expected_out)


@pytest.mark.gpu
def test_the_partial_before_may_lie_elsewhere_in_fewer_bits() -> None:
    before, block_out = (torch.randn(1, 64, 2, 128, device="cuda").bfloat16() for _ in range(2))
    out, lse, block_lse = (
        torch.full(before.shape, torch.nan, device="cuda"),
        *torch.randn(2, 1, 64, 2, 1, device="cuda"),
    )
    expected = sigmoid(before.float(), lse, block_out, block_lse)
    one_pass.merge(out, before, lse, block_out, block_lse)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


@pytest.mark.gpu
def test_other_dtypes_are_left_to_torch() -> None:
    out, lse = torch.zeros(1, 2, 1, 8, device="cuda"), torch.zeros(1, 2, 1, 1, device="cuda")
    assert one_pass.merges(out, lse, out, lse)
    assert not one_pass.merges(out.double(), lse, out, lse)
    assert not one_pass.merges(out, lse.double(), out, lse)
    assert not one_pass.merges(out, lse, out.double(), lse)
    assert not one_pass.merges(out, lse, out, lse.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 96, 128])
def test_every_bit_of_a_sum_is_that_of_one_after_another(dim: int, dtype: torch.dtype) -> None:
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
    assert one_pass.adds(total[:, rows], blocks)
    one_pass.add(total[:, rows], blocks)
    assert torch.equal(total, expected)
    assert not torch.equal(total, backwards)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_bit_of_a_sum_of_listed_blocks_is_that_of_one_after_another(dtype: torch.dtype) -> None:
    """Three calls of ranks 1 to 3, 2 to 3, and 3, two items each; what nothing is added to keeps its -0."""
    parts = range(1, 4), range(2, 4), range(3, 4)
    total = torch.randn(8, 10, 3, 16, device=DEVICE)
    total[:2] = -0.0
    blocks = torch.randn(12, 5, 3, 16, device=DEVICE).to(dtype)
    expected, calls = total.clone(), iter(blocks.split([6, 4, 2]))
    for part in parts:
        expected[2 * part.start : 2 * part.stop, 5:] += next(calls)
    listed, unit = places(lot_of(parts), SIDE, total.device)
    one_pass.add_listed(total.view(-1, unit, 3, 16), blocks, listed)
    assert torch.equal(total.view(torch.int32), expected.view(torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [16, 96])
def test_every_bit_of_listed_merges_is_that_of_one_after_another(dim: int, dtype: torch.dtype) -> None:
    """As above; the last five rows of rank 3 hold nothing before, whatever lies there, and those of rank 0 stay so."""
    parts = range(1, 4), range(2, 4), range(3, 4)
    out, lse = torch.randn(8, 10, 3, dim, device="cuda"), torch.randn(8, 10, 3, 1, device="cuda") * 9
    out[6:, 5:], lse[6:, 5:] = torch.nan, -torch.inf
    blocks, lses = torch.randn(12, 5, 3, dim, device="cuda").to(dtype), torch.randn(12, 3, 5, device="cuda") * 9
    expected, expected_lse, begin = out.clone(), lse.clone(), 0
    for part in parts:
        for item in range(2 * part.start, 2 * part.stop):
            block = blocks[begin].float(), lses[begin].t().unsqueeze(-1)
            rows = expected[item, 5:], expected_lse[item, 5:]
            first = item >= 6 and part.start == 1
            expected[item, 5:], expected_lse[item, 5:] = block if first else sigmoid(*rows, *block)
            begin += 1
    listed, unit = places(lot_of(parts), SIDE, out.device)
    seen = begun((b"\1" * 10, b"\1" * 10, b"\1" * 10, b"\1" * 5 + b"\0" * 5), 2, unit, out.device)
    one_pass.merge_listed(out.view(-1, unit, 3, dim), lse.view(-1, unit, 3, 1), blocks, lses, listed, seen)
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(lse, expected_lse)


@pytest.mark.gpu
def test_listed_units_of_blocks_lie_apart_in_an_lse() -> None:
    """Blocks of 8 rows, at row 4 and at row 0: units of 4, of which lse has two beside each other in a head."""
    lots = tuple(
        Call(KeyGroup(Block(slice(at, at + 8), slice(0, 4), causal=False)), range(0, 2), 0, 9) for at in (4, 0)
    )
    out, lse = torch.randn(2, 12, 3, 16, device="cuda"), torch.randn(2, 12, 3, 1, device="cuda")
    blocks, lses = torch.randn(4, 8, 3, 16, device="cuda"), torch.randn(4, 3, 8, device="cuda")
    expected, expected_lse = out.clone(), lse.clone()
    for item, at in ((0, 4), (1, 4), (2, 0), (3, 0)):
        rows = item % 2, slice(at, at + 8)
        joined = sigmoid(expected[rows], expected_lse[rows], blocks[item], lses[item].t().unsqueeze(-1))
        expected[rows], expected_lse[rows] = joined
    listed, unit = places(lots, Side(False, 2, 1, 12), out.device)
    assert unit == 4
    seen = begun((b"\1" * 12,) * 2, 1, unit, out.device)
    units = [x.view(-1, unit, *x.shape[2:]) for x in (out, lse, blocks)]
    one_pass.merge_listed(*units, lses, listed, seen)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


def lot_of(parts: tuple[range, ...]) -> tuple[Call, ...]:
    return tuple(Call(KeyGroup(Block(slice(5, 10), slice(0, 5), causal=False)), ranks, 0, 9) for ranks in parts)


SIDE = Side(keys=False, size=4, batch=2, length=10)


def test_sums_of_other_dtypes_are_left_to_torch() -> None:
    total, blocks = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 2, 1, 8)
    assert one_pass.adds(total, blocks)
    assert not one_pass.adds(total.double(), blocks)
    assert not one_pass.adds(total.bfloat16(), blocks)
    assert not one_pass.adds(total, blocks.double())
    assert not one_pass.adds(total, blocks.transpose(3, 4))
