"""`assert_close(..., sinks=)`: numbers or a tensor, whose gradient is compared, too."""

from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.api.returned import rounded
from tests.unit.api.attention import DTYPES, HEADS, attend, tensors


def sinks_of(seed: int = 0) -> Tensor:
    return torch.randn(HEADS, generator=torch.Generator().manual_seed(seed))


def in_float32(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, causal: bool) -> Tensor:
    return attend(q, k, v, sinks=sinks, causal=causal)[0]


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor, *, s_aux: Tensor, causal: bool) -> Tensor:
    return attend(q, k, v, sinks=s_aux, causal=causal, wide=q.dtype)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [in_float32, in_its_own_dtype])
def test_healthy_sinks_pass_with_their_gradient(function: Any, dtype: str) -> None:
    for seed, length in enumerate((16, 130)):
        q, k, v, dout = tensors(dtype, length, length, seed=seed)
        sinks = sinks_of(seed)
        for given in (sinks.to(q.dtype), 3 * sinks.float(), sinks.float() - 12):  # the last: subnormal in float16
            found = accuracy.assert_close(function, q, k, v, dout=dout, causal=True, sinks=given)
            assert set(found) == {"out", "dq", "dk", "dv", "dsink"}
            assert dtype != "float64" or given.dtype != q.dtype or max(found.values()) < 1e-12
    out = in_its_own_dtype(q, k, v, s_aux=sinks, causal=True)
    assert set(accuracy.assert_close(out, q, k, v, causal=True, sinks=sinks.tolist())) == {"out"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_gradient_of_sinks_is_found_and_nothing_else_is_accused(dtype: str) -> None:
    q, k, v, dout = tensors(dtype, 48, 48)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, sinks_of())]
    out, _ = attend(*leaves[:3], sinks=leaves[3], causal=True)
    dq, dk, dv, dsink = torch.autograd.grad(out, leaves, dout, retain_graph=True)
    (of_half,) = torch.autograd.grad(out, leaves[-1:], dout * (torch.arange(48) < 24).view(-1, 1, 1))
    given = {"dout": dout, "dq": dq, "dk": dk, "dv": dv, "causal": True, "sinks": leaves[3].detach()}
    assert "dsink" in accuracy.assert_close(out.detach(), q, k, v, dsink=dsink, **given)
    for wrong in (2 * dsink, -dsink, torch.zeros_like(dsink), of_half, dsink.roll(1)):
        with pytest.raises(AssertionError, match=r"\Adsink is wrong: .* head \d") as caught:
            accuracy.assert_close(out.detach(), q, k, v, dsink=wrong, **given)
        assert "dq is wrong" not in str(caught.value)
    with pytest.raises(AssertionError, match="dsink has the shape"):
        accuracy.assert_close(out.detach(), q, k, v, dsink=dsink[:2], **given)


def test_products_in_tf32_are_a_fact_beside_sinks_too() -> None:
    q, k, v, dout = tensors("float32", 48, 48)

    def in_tf32(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, causal: bool) -> Tensor:
        cut = (x + (rounded(x, "rounded to") - x).detach() for x in (q, k, v))
        return attend(*cut, sinks=sinks, causal=causal)[0]

    with pytest.warns(UserWarning, match="TF32"):
        assert "dsink" in accuracy.assert_close(in_tf32, q, k, v, dout=dout, causal=True, sinks=sinks_of())


def test_sums_over_parts_in_the_dtype_of_a_sink_are_rounding() -> None:
    q, k, v, dout = tensors("float64", heads_kv=HEADS)

    def by_rows(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        """One row at a time, each with a float32 sink of its own."""
        one = [attend(q[:, i : i + 1], k, v, sinks=1.0 * sinks)[0] for i in range(q.shape[1])]
        return torch.cat(one, 1)

    for seed in range(4):
        assert accuracy.assert_close(by_rows, q, k, v, dout=dout, sinks=sinks_of(seed))["dsink"] > 0
