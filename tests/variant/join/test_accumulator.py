import pytest
import torch

from accuracy.variant.join import Accumulator

WHOLE, FRONT, BACK = slice(0, 4), slice(0, 2), slice(2, 4)


def blocks() -> list[tuple[slice, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(rows, torch.randn(1, rows.stop - rows.start, 2, 3, generator=generator, dtype=torch.float64).bfloat16())
            for rows in (WHOLE, FRONT, BACK, WHOLE)]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 0, 3), (2, 3, 1, 0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_the_plain_sum_in_its_dtype_whichever_block_comes_first(dtype: torch.dtype, order) -> None:
    accumulator = Accumulator(torch.empty(1, 4, 2, 3), dtype)
    expected = torch.zeros(1, 4, 2, 3, dtype=dtype)
    for index in order:
        rows, block = blocks()[index]
        accumulator.add(rows, block)
        expected[:, rows] += block
    assert accumulator.value().dtype == dtype
    assert torch.equal(accumulator.value(), expected)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("rows", [WHOLE, BACK])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_added_at_once_are_added_one_after_another(dtype: torch.dtype, rows: slice, begun: bool) -> None:
    """Of very different sizes, so that another order would give other bits."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1e3, 1.0, 1e-2, 3e2, 1e-3]).view(1, -1, 1, 1, 1)
    many = torch.randn(2, 5, rows.stop - rows.start, 2, 3, generator=generator).mul(size).bfloat16()
    at_once, one_by_one = (Accumulator(torch.empty(2, 4, 2, 3), dtype) for _ in range(2))
    for accumulator in (at_once, one_by_one):
        if begun:
            accumulator.take(torch.ones(2, 4, 2, 3))
    at_once.add_each(rows, many.clone())  # the first may become the sum
    for block in many.unbind(1):
        one_by_one.add(rows, block.clone())
    assert torch.equal(at_once.value(), one_by_one.value())
    backwards = Accumulator(torch.empty(2, 4, 2, 3), dtype)
    backwards.add_each(rows, many.flip(1))
    assert begun or not torch.equal(at_once.value(), backwards.value())
