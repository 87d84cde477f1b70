"""What of flex_attention can be seen without a GPU: its forward, unfused."""

import pytest
import torch

from accuracy.kernel import flex_attention
from accuracy.reference.float64 import attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_lse_is_natural_and_its_mask_aligned_at_the_bottom_right(dtype: torch.dtype) -> None:
    """GQA, 5 rows over 37 keys. Bound: sums of 16 products, and u for each of the four operations on lse."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 37, 4, 16, generator=generator).to(dtype)
    k, v = (torch.randn(2, 37, 2, 16, generator=generator).to(dtype) for _ in range(2))
    kernel = flex_attention.KERNEL().build("cpu")
    reference = attention(q, k, v, q, scale=0.3, causal=True)
    out, lse = kernel.forward(q[:, -5:], k, v, scale=0.3, causal=True, out_dtype=dtype)
    bound = 32 * torch.finfo(dtype).eps / 2
    for x, expected in ((out, reference.out[:, -5:]), (lse, reference.lse[:, :, -5:])):
        assert x.shape == expected.shape
        assert (x.double() - expected).norm() / expected.norm() < bound


def test_it_has_no_backward_on_the_cpu_and_says_so() -> None:
    """Where torch gets one, this fails and the kernel can do more."""
    kernel = flex_attention.KERNEL().build("cpu")
    x, lse = torch.ones(1, 4, 1, 16), torch.zeros(1, 1, 4)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        kernel.backward(x, x, x, x, x, lse, scale=1.0, causal=False, gradient_dtype=torch.float32)
    assert "no backward on the CPU" in flex_attention.KERNEL().abilities("cpu").missing


def test_the_shapes_of_a_run_do_not_reach_torchs_limit_of_recompilations() -> None:
    limit = torch._dynamo.config.recompile_limit
    with flex_attention._room_for_shapes():
        assert torch._dynamo.config.recompile_limit == flex_attention.COMPILED_SHAPES
    assert torch._dynamo.config.recompile_limit == limit
