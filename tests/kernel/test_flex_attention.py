"""What of flex_attention can be seen without a GPU: its forward, unfused."""

import pytest
import torch

from accuracy.kernel import flex_attention
from tests.kernel.problem import Problem, relative


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_lse_is_natural_and_its_mask_aligned_at_the_bottom_right(dtype: torch.dtype) -> None:
    """GQA, 5 rows over 37 keys. Bound: sums of 16 products, and u for each of the four operations on lse."""
    problem = Problem(queries=5, keys=37, heads=4, heads_kv=2, dim=16, dtype=dtype, batch=2)
    tensors = problem.draw("cpu")
    kernel = flex_attention.KERNEL().build("cpu")
    found = kernel.forward(*tensors[:3], scale=problem.scale, causal=True, out_dtype=dtype)
    assert [x.shape for x in found] == [(2, 5, 4, 16), (2, 4, 5)]
    assert max(relative(found, problem.reference(*tensors)).values()) < 32 * torch.finfo(dtype).eps / 2


def test_it_has_no_backward_on_the_cpu_and_says_so() -> None:
    """Where torch gets one, this fails and the kernel can do more."""
    kernel = flex_attention.KERNEL().build("cpu")
    x, lse = torch.ones(1, 4, 1, 16), torch.zeros(1, 1, 4)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        kernel.backward(x, x, x, x, x, lse, scale=1.0, causal=False, gradient_dtype=torch.float32)


def test_the_shapes_of_a_run_do_not_reach_torchs_limit_of_recompilations() -> None:
    limit = torch._dynamo.config.recompile_limit
    with flex_attention._room_for_shapes():
        assert torch._dynamo.config.recompile_limit == flex_attention.COMPILED_SHAPES
    assert torch._dynamo.config.recompile_limit == limit
