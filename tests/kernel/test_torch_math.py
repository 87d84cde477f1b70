"""What torch's unfused form rounds, by its knob."""

import pytest
import torch

from accuracy.kernel import torch_math
from accuracy.reference.float64 import attention


def errors(options: torch_math.TorchMath, dtype: torch.dtype) -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    q, k, v, dout = (torch.randn(1, 128, 2, 64, generator=generator).to(dtype) for _ in range(4))
    kernel = options.build("cpu")
    out, lse = kernel.forward(q, k, v, scale=0.3, causal=True, out_dtype=dtype)
    gradients = kernel.backward(dout, q, k, v, out, lse, scale=0.3, causal=True, gradient_dtype=dtype)
    reference = attention(q, k, v, dout, scale=0.3, causal=True)
    pairs = zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *gradients), strict=True)
    return {
        name: float((x.double() - getattr(reference, name)).norm() / getattr(reference, name).norm())
        for name, x in pairs
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_sixteen_bits_cost_out_and_gradients_and_not_the_lse_beside_it(dtype: torch.dtype) -> None:
    """Scores of size 2.4 rounded to 16 bits are off by up to 2.4 u, and so is P; computed in float32 only the result is
    rounded, 0.4 u: more than twice as much."""
    fine, coarse = (errors(torch_math.TorchMath(reduced_sums=reduced), dtype) for reduced in (False, True))
    assert all(coarse[name] > 2 * fine[name] for name in ("out", "dq", "dk", "dv"))
    assert coarse["lse"] == fine["lse"] < 2**-20
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
