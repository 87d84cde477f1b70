"""What autograd takes through a maximum, and what all keys meet of a scaled q, is rounding; faults are found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy import assert_close
from tests.strangers import heads_first, refused, visible

LOG2_E = 1.4426950408889634


def with_larger_largest(ds: Tensor) -> Tensor:
    """2^-12 more of the largest dS of each row."""
    return ds + ds * 2.0**-12 * (ds.abs() == ds.abs().amax(-1, keepdim=True))


def through_maximum(
    softmax: str, change: Callable[[Tensor], Tensor] | None = None, factor: float = 1.0
) -> Callable[..., Any]:
    """Attention by exp, or by exp2 of a q that is scaled in its own dtype, of scores less their maximum, through which
    autograd goes."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> tuple[Tensor, Tensor]:
        scaled = softmax == "exp2"
        exp, log = (torch.exp2, torch.log2) if scaled else (torch.exp, torch.log)
        scale = softmax_scale * LOG2_E if scaled else softmax_scale
        dtype, q = q.dtype, (q * scale).to(q.dtype) if scaled else q
        q, k, v = heads_first(q, k, v)
        scores = q @ k.mT * (1.0 if scaled else scale)
        if change and scores.requires_grad:
            scores.register_hook(change)
        scores = visible(scores) if causal else scores
        most = scores.amax(-1, keepdim=True)
        weights = exp(scores - most)
        total = weights.sum(-1, keepdim=True)
        lse = (most + log(total))[..., 0] / (LOG2_E if scaled else 1.0)
        return (weights @ v / total).transpose(1, 2).to(dtype), lse * factor

    return attention


def drawn(dtype: torch.dtype, of_keys: float, of_values: float) -> list[Tensor]:
    """q, k, v and dout: one vector is added to all keys, a number to all values."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, 96, 2, 32, generator=generator) for _ in range(4))
    k = k + of_keys * torch.randn(32, generator=generator)
    return [x.to(dtype) for x in (q, k, v + of_values, dout)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("softmax", "dtype", "of_keys", "of_values"),
    [("exp", torch.float32, 0.0, 1.0), ("exp2", torch.float32, 0.0, 1.0), ("exp2", torch.bfloat16, 3.0, 0.0),
     ("exp2", torch.float16, 3.0, 0.0)],
)  # fmt: skip
def test_what_healthy_functions_round_passes_and_a_fault_beside_it_does_not(
    softmax: str, dtype: torch.dtype, of_keys: float, of_values: float, causal: bool, device: str
) -> None:
    q, k, v, dout = (x.to(device) for x in drawn(dtype, of_keys, of_values))
    how = {"dout": dout, "causal": causal, "softmax_scale": 0.2}
    assert_close(through_maximum(softmax), q, k, v, **how)
    if dtype == torch.float32:
        tensor, wrong = "dq", through_maximum(softmax, with_larger_largest)
    else:
        tensor, wrong = "lse", through_maximum(softmax, factor=1 + torch.finfo(dtype).eps / 2)
    refused(rf"^{tensor} is wrong", wrong, q, k, v, **how)
    refused(rf"^{tensor} is wrong", through_maximum(softmax), q, k, v, **how, policy="kernel")  # which allows neither


def test_what_autograd_takes_through_a_maximum_excuses_no_factor() -> None:
    q, k, v, dout = drawn(torch.bfloat16, 0.0, 0.0)
    attention = through_maximum("exp", lambda ds: 1.006 * ds)
    refused(r"^d[qk] is wrong", attention, q, k, v, dout=dout, causal=True)


@pytest.mark.parametrize(("factor", "is_told"), [(1.0, True), (1.0 + 2.0**-12, False)])
def test_float32_inside_float64_is_told_and_a_factor_beyond_it_is_not(factor: float, is_told: bool) -> None:
    tensors = drawn(torch.float64, 0.0, 0.0)
    said = refused(r"^out is wrong", through_maximum("exp", factor=factor), *tensors[:3], softmax_scale=0.2)
    assert ("float32 inside" in said) == is_told
