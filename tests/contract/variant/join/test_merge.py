import pytest
import torch

from accuracy.core.masks import Block
from accuracy.variant.join import FORMULAS, Accumulator, Running

ALL = ["sigmoid", "logsumexp", "double", "compensated", "rescaled", "rescaled_twice"]


def partials(seed: int, parts: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 outs (parts, B, S, H, D) and lses (parts, B, H, S)."""
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(parts, 2, 5, 3, 4, generator=generator, dtype=torch.float64)
    return outs, torch.randn(parts, 2, 3, 5, generator=generator, dtype=torch.float64) * spread


@pytest.mark.parametrize("formula", ALL)
@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_all_formulas_join_to_the_same_at_any_gap(formula: str, spread: float) -> None:
    """Gaps to several thousand, where exp(gap) overflows float64 (above 709) and float32 (above 88.7) alike.

    6 merges of numbers below |lse| = 4 spread: 6 * 4 spread * u, doubled.
    """
    outs, lses = partials(1, 6, spread)
    running = Running.empty(outs[0], torch.float64, torch.float64, formula)
    for each_out, each_lse in zip(outs, lses, strict=True):
        running.add(Block(slice(0, 5), slice(0, 1), False), each_out, each_lse)
    joined_out, joined_lse = running.result(torch.float64, torch.float64)
    weights = lses.softmax(0).transpose(2, 3).unsqueeze(-1)
    bound = 48 * spread * 2**-53
    assert (joined_lse - lses.logsumexp(0)).abs().max() < bound
    assert (joined_out - (weights * outs).sum(0)).abs().max() < 4 * bound  # |out| below 4


@pytest.mark.parametrize("formula", ALL)
def test_rows_are_assigned_first_and_merged_after(formula: str) -> None:
    """Rows may be reached in any order and by unequal blocks; the first block is taken without rounding."""
    outs, lses = partials(2, 2, 1.0)
    running = Running.empty(outs[0], torch.float64, torch.float64, formula)
    running.add(Block(slice(2, 5), slice(0, 1), False), outs[0][:, 2:], lses[0][:, :, 2:])
    assert torch.equal(running.out[:, 2:], outs[0][:, 2:])
    running.add(Block(slice(0, 5), slice(0, 1), False), outs[1], lses[1])
    out, lse = running.result(torch.float64, torch.float64)
    assert torch.equal(out[:, :2], outs[1][:, :2])
    assert torch.equal(lse[:, :, :2], lses[1][:, :, :2])
    assert (lse - torch.logaddexp(*lses))[:, :, 2:].abs().max() < 8 * 2**-53 * 4


@pytest.mark.parametrize("formula", ["logsumexp", "double"])
def test_empty_partials_are_allowed_on_both_sides(formula: str) -> None:
    """lse = -inf: no key was seen. Joined with anything it changes nothing; two of them stay empty, without NaN."""
    some = torch.randn(1, 3, 1, 2), torch.randn(1, 3, 1, 1)
    empty = torch.zeros_like(some[0]), torch.full_like(some[1], -torch.inf)
    for one, other, expected in ((some, empty, some), (empty, some, some), (empty, empty, empty)):
        joined = FORMULAS[formula](*one, *other)
        assert all(torch.equal(x.float(), y) for x, y in zip(joined, expected, strict=True))
    assert FORMULAS["sigmoid"](*empty, *empty)[0].isnan().all()  # so the published formula's rows are tracked


WHOLE, FRONT, BACK = slice(0, 4), slice(0, 2), slice(2, 4)


@pytest.mark.parametrize("order", [(WHOLE, FRONT, BACK, WHOLE), (FRONT, BACK, WHOLE), (BACK, WHOLE, FRONT)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_accumulator_is_the_plain_sum_in_its_dtype_whichever_block_comes_first(dtype, order) -> None:
    """Of blocks of very different sizes: another order would give other bits."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1e3, 1.0, 1e-2, 3e2, 1e-3]).view(-1, 1, 1, 1, 1)
    one_by_one, backwards = (Accumulator(torch.empty(2, 4, 2, 3), dtype) for _ in range(2))
    expected = torch.zeros(2, 4, 2, 3, dtype=dtype)
    for rows in order:
        many = (torch.randn(5, 2, rows.stop - rows.start, 2, 3, generator=generator) * size).bfloat16()
        for block in many:
            one_by_one.add(rows, block.clone())
            expected[:, rows] += block
        for block in many.flip(0):
            backwards.add(rows, block.clone())
    assert one_by_one.value().dtype == dtype
    assert torch.equal(one_by_one.value(), expected)
    assert not torch.equal(backwards.value(), expected)
