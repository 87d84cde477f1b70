"""`assert_close(..., sinks=)`: numbers or a tensor, whose gradient is compared, too."""

from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.api.returned import rounded

DTYPES = ("bfloat16", "float16", "float32", "float64")
HEADS = 4


def tensors(dtype: str, seed: int = 0, length: int = 48) -> tuple[list[Tensor], Tensor]:
    """q, k, v, dout; sinks."""
    generator, form = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    shapes = ((2, length, heads, 16) for heads in (HEADS, 2, 2, HEADS))
    drawn = [torch.randn(shape, generator=generator).to(form) for shape in shapes]
    return drawn, torch.randn(HEADS, generator=generator)


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, wide: torch.dtype) -> Tensor:
    """With a logit more in the softmax, whose value is 0; wide: of all that is computed."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).to(wide) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    sink = sinks.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(q.dtype)


def in_float32(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, causal: bool) -> Tensor:
    return attend(q, k, v, sinks, torch.promote_types(q.dtype, torch.float32))


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor, *, s_aux: Tensor, causal: bool) -> Tensor:
    return attend(q, k, v, s_aux, q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [in_float32, in_its_own_dtype])
def test_healthy_sinks_pass_with_their_gradient(function: Any, dtype: str) -> None:
    for seed, length in enumerate((16, 48, 130)):
        (q, k, v, dout), sinks = tensors(dtype, seed, length)
        for given in (sinks.to(q.dtype), 3 * sinks.float(), sinks.float() - 12):  # the last: subnormal in float16
            found = accuracy.assert_close(function, q, k, v, dout=dout, causal=True, sinks=given)
            assert set(found) == {"out", "dq", "dk", "dv", "dsink"}
            assert dtype != "float64" or given.dtype != q.dtype or max(found.values()) < 1e-12
    rows = accuracy.assert_close(attend(q, k, v, sinks, q.dtype), q, k, v, causal=True, sinks=sinks.tolist())
    assert set(rows) == {"out"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_gradient_of_sinks_is_found_and_nothing_else_is_accused(dtype: str) -> None:
    (q, k, v, dout), sinks = tensors(dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    out = attend(*leaves, torch.promote_types(q.dtype, torch.float32))
    dq, dk, dv, dsink = torch.autograd.grad(out, leaves, dout)
    half = dout.clone()
    half[:, 24:] = 0
    of_half = torch.autograd.grad(attend(*leaves, torch.promote_types(q.dtype, torch.float32)), leaves[-1], half)[0]
    given = {"dout": dout, "dq": dq, "dk": dk, "dv": dv, "causal": True, "sinks": sinks}
    assert "dsink" in accuracy.assert_close(out.detach(), q, k, v, dsink=dsink, **given)
    for wrong in (2 * dsink, -dsink, torch.zeros_like(dsink), of_half, dsink.roll(1)):
        with pytest.raises(AssertionError, match=r"\Adsink is wrong: .* head \d") as caught:
            accuracy.assert_close(out.detach(), q, k, v, dsink=wrong, **given)
        assert "dq is wrong" not in str(caught.value)


def test_products_in_tf32_are_a_fact_beside_sinks_too() -> None:
    (q, k, v, dout), sinks = tensors("float32")

    def in_tf32(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, causal: bool) -> Tensor:
        cut = (x + (rounded(x, "rounded to") - x).detach() for x in (q, k, v))
        return attend(*cut, sinks, torch.float32)

    with pytest.warns(UserWarning, match="TF32"):
        assert "dsink" in accuracy.assert_close(in_tf32, q, k, v, dout=dout, causal=True, sinks=sinks)


def test_a_gradient_of_sinks_without_sinks_or_of_other_heads_is_one_line() -> None:
    (q, k, v, dout), sinks = tensors("float32")
    with pytest.raises(accuracy.ConfigError, match="dsink came without sinks"):
        accuracy.assert_close(q, q, k, v, dout=dout, dsink=sinks)
    with pytest.raises(accuracy.ConfigError, match="a finite logit of each of 4 heads"):
        accuracy.assert_close(q, q, k, v, causal=True, sinks=sinks[:2])
    with pytest.raises(AssertionError, match="dsink has the shape"):
        accuracy.assert_close(q, q, k, v, dout=dout, causal=True, sinks=sinks, dsink=sinks[:2])
