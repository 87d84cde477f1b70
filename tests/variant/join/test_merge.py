import pytest
import torch

from accuracy.core.masks import Block
from accuracy.variant.join import FORMULAS, Running, _kahan

ALL = ["sigmoid", "logsumexp", "double", "compensated", "rescaled", "rescaled_twice"]


def partials(seed: int, parts: int, spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """float64 outs (parts, B, S, H, D) and lses (parts, B, H, S), and the exact joined pair."""
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(parts, 2, 5, 3, 4, generator=generator, dtype=torch.float64)
    lses = torch.randn(parts, 2, 3, 5, generator=generator, dtype=torch.float64) * spread
    weights = lses.softmax(0).transpose(2, 3).unsqueeze(-1)
    return outs, lses, (weights * outs).sum(0), lses.logsumexp(0)


@pytest.mark.parametrize("formula", ALL)
@pytest.mark.parametrize("spread", [1.0, 100.0, 1000.0])
def test_all_formulas_join_to_the_same_at_any_gap(formula: str, spread: float) -> None:
    """Gaps to several thousand, where exp(gap) overflows float64 (above 709) and float32 (above 88.7) alike.

    6 merges of numbers below |lse| = 4 spread: 6 * 4 spread * u, doubled.
    """
    outs, lses, out, lse = partials(1, 6, spread)
    running = Running.empty(outs[0], torch.float64, torch.float64, formula)
    for each_out, each_lse in zip(outs, lses, strict=True):
        running.add(Block(slice(0, 5), slice(0, 1), False), each_out, each_lse)
    joined_out, joined_lse = running.result(torch.float64, torch.float64)
    bound = 48 * max(spread, 1.0) * 2**-53
    assert (joined_lse - lse).abs().max() < bound
    assert (joined_out - out).abs().max() < 4 * bound  # |out| below 4


@pytest.mark.parametrize("formula", ALL)
def test_rows_are_assigned_first_and_merged_after(formula: str) -> None:
    """Rows may be reached in any order and by unequal blocks; the first block is taken without rounding."""
    outs, lses, *_ = partials(2, 2, 1.0)
    running = Running.empty(outs[0], torch.float64, torch.float64, formula)
    running.add(Block(slice(2, 5), slice(0, 1), False), outs[0][:, 2:], lses[0][:, :, 2:])
    assert torch.equal(running.out[:, 2:], outs[0][:, 2:])
    running.add(Block(slice(0, 5), slice(0, 1), False), outs[1], lses[1])
    out, lse = running.result(torch.float64, torch.float64)
    assert torch.equal(out[:, :2], outs[1][:, :2])
    assert torch.equal(lse[:, :, :2], lses[1][:, :, :2])
    expected = torch.logaddexp(lses[0], lses[1])[:, :, 2:]
    assert (lse[:, :, 2:] - expected).abs().max() < 8 * 2**-53 * 4


@pytest.mark.parametrize("formula", ["logsumexp", "double"])
def test_empty_partials_are_allowed_on_both_sides(formula: str) -> None:
    """lse = -inf: no key was seen. Joined with anything it changes nothing; two of them stay empty, without NaN."""
    out, lse = torch.randn(1, 3, 1, 2), torch.randn(1, 3, 1, 1)
    nothing, empty = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
    join = FORMULAS[formula]
    for one, other in (((out, lse), (nothing, empty)), ((nothing, empty), (out, lse))):
        joined = join(*one, *other)
        assert torch.equal(joined[0].float(), out)
        assert torch.equal(joined[1].float(), lse)
    joined = join(nothing, empty, nothing, empty)
    assert torch.equal(joined[0].float(), nothing)
    assert torch.equal(joined[1].float(), empty)


def test_the_published_formula_is_not_safe_there_which_is_why_rows_are_tracked() -> None:
    nothing, empty = torch.zeros(1, 3, 1, 2), torch.full((1, 3, 1, 1), -torch.inf)
    assert FORMULAS["sigmoid"](nothing, empty, nothing, empty)[0].isnan().all()


def test_compensation_keeps_what_a_step_above_the_total_loses() -> None:
    """Knuth's two-sum is exact: new + lost = total + step, also where the step is the larger (Dekker's is not)."""
    total, step = torch.tensor([1e-3, 3.0]), torch.tensor([1.2345678, -1e-4])
    new, lost = _kahan(total, torch.zeros(2), step)
    assert torch.equal(new.double() + lost.double(), total.double() + step.double())
    assert (lost != 0).all()
