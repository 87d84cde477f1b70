"""The kernel flex_attention calls torch's function with our mask and returns a natural lse: tested without a GPU."""

import torch

from accuracy.kernel import flex_attention
from tests.contract.kernel.problem import Problem, relative


def test_flex_attention_s_lse_is_natural_and_its_mask_aligned_at_the_bottom_right() -> None:
    """Unfused; GQA, 5 rows over 37 keys. Bound: sums of 16 products, and u for each of the four operations on lse."""
    problem = Problem(queries=5, keys=37, heads=4, heads_kv=2, dim=16, dtype=torch.float64, batch=2)
    tensors, kernel = problem.draw("cpu"), flex_attention.KERNEL().build("cpu")
    found = kernel.forward(*tensors[:3], scale=problem.scale, causal=True, out_dtype=torch.float64)
    assert [x.shape for x in found] == [(2, 5, 4, 16), (2, 4, 5)]
    assert max(relative(found, problem.reference(*tensors)).values()) < 32 * 2.0**-53
