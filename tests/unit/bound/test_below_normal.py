"""Below float16's normal numbers: attention in torch alone, which stores scores, P, dP and dS in float16, is right."""

import pytest
import torch
from torch import Tensor

from accuracy import assert_close
from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.reference import float64
from tests.unit.api.attention import attend

PROBLEM = Problem(1, 128, 2, 2, 64, "causal", 0.125)


def attention(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Causal, in the inputs' dtype: out, dq, dk, dv."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, _ = attend(q, k, v, causal=True, scale=scale, wide=q.dtype)
    return out, *torch.autograd.grad(out, (q, k, v), dout)


@pytest.mark.parametrize(("name", "times"), [("peaked", 30.0), ("uniform", 1e-3), ("sum_loss", 1e-3)])
def test_float16_attention_in_torch_alone_is_accepted_and_a_doubled_gradient_is_not(name: str, times: float) -> None:
    """Weights that are stored as another number, and a dS most of which is stored as zero. times: of v and dout."""
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    q, k, v, dout = drawing.round_to(drawing.draw(part, PROBLEM, 0), "float16", "cpu").tensors
    v, dout = v * times, dout * times
    out, dq, dk, dv = attention(q, k, v, dout, PROBLEM.softmax_scale)
    how = {"dout": dout, "causal": True, "softmax_scale": PROBLEM.softmax_scale}
    assert_close(out, q, k, v, dq=dq, dk=dk, dv=dv, **how)
    with pytest.raises(AssertionError, match="dv is wrong"):
        assert_close(out, q, k, v, dq=dq, dk=dk, dv=2 * dv, **how)


def test_a_weight_that_is_stored_as_another_is_accepted() -> None:
    """P of the second key is 1.4 x 2^-25 and is stored as 2^-24: dk, made of it, is 1.4 times too large."""
    q, k, v, dout = (torch.zeros(1, length, 1, 8, dtype=torch.float16) for length in (1, 2, 2, 1))
    q[..., 0], k[:, 1, :, 0], v[:, 1, :, 0], dout[..., 0] = 1.0, -17.0, 128.0, 128.0
    out, dq, dk, dv = attention(q, k, v, dout, 1.0)
    assert_close(out, q, k, v, dout=dout, dq=dq, dk=dk, dv=dv, causal=True, softmax_scale=1.0)
    how = {"scale": 1.0, "causal": True}
    reference = float64.attention(q, k, v, dout, **how)
    assert float((dk - reference.dk).abs().max() / reference.dk.abs().max()) > 0.3
    bound = bounds(q, k, v, dout, reference, policy.kernel("float16", weight_roundings=2), **how)["dk"]
    assert bool(((dk - reference.dk).abs() <= bound.certain).all())
