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
