import pytest
import torch

from accuracy.variant.join import sigmoid

one_pass = pytest.importorskip("accuracy.kernel.triton.one_pass", reason="needs triton")


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
