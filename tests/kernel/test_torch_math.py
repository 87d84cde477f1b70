"""What torch's unfused form rounds, by its knob."""

import pytest
import torch

from accuracy.kernel import torch_math
from tests.kernel import measured


def errors(options: torch_math.TorchMath, dtype: torch.dtype) -> dict[str, float]:
    return measured.errors(options.build("cpu"), dtype, scale=0.3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_sixteen_bits_cost_out_and_gradients_and_not_the_lse_beside_it(dtype: torch.dtype) -> None:
    """Scores of size 2.4 rounded to 16 bits are off by up to 2.4 u, and so is P; computed in float32 only the result is
    rounded, 0.4 u: more than twice as much."""
    fine, coarse = (errors(torch_math.TorchMath(reduced_sums=reduced), dtype) for reduced in (False, True))
    assert all(coarse[name] > 2 * fine[name] for name in ("out", "dq", "dk", "dv"))
    assert coarse["lse"] == fine["lse"] < 2**-20
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
