"""`assert_close(..., attn_mask=, dlse=, sinks=)`: any mask, bias and sink, and the gradients of bias, sink and lse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from tests.strangers import DTYPES, HEADS, attend, refused, tensors, wider

QUERIES, KEYS = 24, 40


def given(dtype: str) -> tuple[list[Tensor], Tensor]:
    """q, k, v, dout; dlse in float32 or wider."""
    drawn = tensors(dtype, QUERIES, KEYS, seed=3)
    dlse = torch.randn(2, HEADS, QUERIES, generator=torch.Generator().manual_seed(5))
    return drawn, 2 * dlse.to(wider(drawn[0].dtype))


def masks(dtype: str) -> dict[str, Tensor]:
    """Boolean ones and biases, of every shape that broadcasts."""
    generator, form = torch.Generator().manual_seed(4), getattr(torch, dtype)
    distance = torch.arange(QUERIES)[:, None] + KEYS - QUERIES - torch.arange(KEYS)
    by_item = torch.rand(2, 1, QUERIES, KEYS, generator=generator) > 0.5
    by_item[..., 0] = True
    slopes = (2.0 ** -torch.arange(1, HEADS + 1)).view(HEADS, 1, 1)
    shapes = {"by every index": (2, HEADS, QUERIES, KEYS), "of keys": (2, 1, 1, KEYS), "of all": (QUERIES, KEYS),
              "by head and key": (1, HEADS, 1, KEYS)}  # fmt: skip
    biases = {name: 2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    biases["ALiBi"] = -slopes * distance.abs()
    return {
        "by batch item": by_item,
        "keys alone": (torch.arange(KEYS) > 3)[None],
        "documents": torch.arange(QUERIES)[:, None] // 8 == torch.arange(KEYS) // 14,
        "hidden by -inf": torch.zeros(QUERIES, KEYS).masked_fill(distance < 0, -torch.inf).to(form),
    } | {name: x.to(form).requires_grad_() for name, x in biases.items()}


def as_torch(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, attn_mask=attn_mask, enable_gqa=True).transpose(1, 2)


def wide(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, bias=attn_bias)


def narrow(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, bias=bias, wide=q.dtype)


@pytest.mark.stress(4, "function", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [as_torch, wide, narrow])
def test_healthy_attention_passes_under_any_mask_with_the_gradients_of_bias_and_lse(
    function: Callable[..., Any], dtype: str
) -> None:
    inputs, dlse = given(dtype)
    *qkv, dout = inputs
    through_lse = {} if function is as_torch else {"dlse": dlse}
    for name, mask in masks(dtype).items():
        found = accuracy.assert_close(function, *qkv, dout=dout, attn_mask=mask, **through_lse)
        expected = {"out", "dq", "dk", "dv"} | ({"dbias"} if mask.requires_grad else set())
        assert set(found) == expected | ({"lse"} if through_lse else set()), name
        assert dtype != "float64" or max(found.values()) < 1e-12, (name, found)
    if through_lse:
        assert "lse" in accuracy.assert_close(function, *qkv, dout=dout, dlse=dlse)


def flipped(mask: Tensor) -> Tensor:
    return mask.flip(-1)


def other_heads(mask: Tensor) -> Tensor:
    """Return a mask whose heads are moved on by one; its queries, where all heads share it."""
    return mask.roll(1, -3 if mask.dim() > 2 and mask.shape[-3] > 1 else -2)


@pytest.mark.stress(2, "change", "dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("change", [flipped, other_heads])
def test_a_mask_that_is_used_otherwise_is_found(change: Callable[[Tensor], Tensor], dtype: str) -> None:
    (q, k, v, dout), _ = given(dtype)
    for name in ("by batch item", "ALiBi", "by every index"):
        how = {"dout": dout, "attn_mask": masks(dtype)[name].detach()}
        refused("out is wrong", lambda q, k, v, mask: narrow(q, k, v, bias=change(mask)), q, k, v, **how)


def returned(dtype: str, name: str = "by every index") -> dict[str, Any]:
    """What `assert_close` takes of a right attention with a bias, and a gradient through lse."""
    inputs, dlse = given(dtype)
    bias = masks(dtype)[name]
    leaves = [x.requires_grad_() for x in (*inputs[:3], bias)]
    results = wide(*leaves[:3], attn_bias=bias)
    gradients = torch.autograd.grad(results, leaves, [inputs[3], dlse])
    found = dict(zip(("dq", "dk", "dv", "dbias"), gradients, strict=True))
    q, k, v = (x.detach() for x in leaves[:3])
    given_out = {"actual": results[0].detach(), "q": q, "k": k, "v": v}
    return found | given_out | {"dout": inputs[3], "dlse": dlse, "attn_mask": bias}


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: 2 * x, "its negative": lambda x: -x, "none": torch.zeros_like,
    "of another key": lambda x: x.roll(1, -1), "of another head": lambda x: x.roll(1, -3),
    "of another item": lambda x: x.flip(0), "one row not": lambda x: x.index_fill(-2, torch.tensor([7]), 0.0),
}  # fmt: skip


@pytest.mark.stress(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_gradient_of_a_bias_is_found_and_nothing_else_is_accused(dtype: str) -> None:
    how = returned(dtype)
    assert "dbias" in accuracy.assert_close(**how)
    for name, change in WRONG.items():
        said = refused(r"\Adbias is wrong: .* query \d+, key \d+", **how | {"dbias": change(how["dbias"])})
        assert "dq is wrong" not in said, name


@pytest.mark.parametrize("factor", [None, 0, -1])
def test_a_function_that_ignores_the_gradient_of_lse_or_turns_it_round_is_found(factor: Any) -> None:
    """factor: of the gradient; None: lse has none."""

    def wrong(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q, k, v)
        return out, lse.detach() if factor is None else lse.detach() + factor * (lse - lse.detach())

    for dtype in DTYPES:
        (*qkv, dout), dlse = given(dtype)
        said = refused(r"\Adq is wrong.*\ndk is wrong|lse is ignored", wrong, *qkv, dout=dout, dlse=dlse)
        assert ("the gradient through lse is ignored" in said) == (factor != -1)


def test_dlse_of_packed_sequences_may_be_an_array_and_a_wrong_lse_is_named_by_its_shape() -> None:
    inputs, dlse = given("float32")
    q, k, v, dout = (x[0] for x in inputs)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q[None], k[None], v[None])
        return out[0], lse[0]

    how: dict[str, Any] = {"q": q, "k": k, "v": v, "dout": dout, "dlse": dlse[0].numpy(), "layout": "thd"}
    assert "dk" in accuracy.assert_close(packed, **how)
    refused(r"\Alse has the shape \(24, 4\), expected \(4, 24\)", lambda *x: (packed(*x)[0], packed(*x)[1].T), **how)


def test_numbers_whose_squares_float64_does_not_hold_are_no_errors() -> None:
    (q, k, v, dout), _ = given("float64")
    accuracy.assert_close(wide, 20 * q, 20 * k, v, dout=dout)
    accuracy.assert_close(wide, q, k, v, dout=1e-170 * dout)


def sinks_of(seed: int = 0) -> Tensor:
    return torch.randn(HEADS, generator=torch.Generator().manual_seed(seed))


def in_float32(q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor, causal: bool = False) -> Tensor:
    return attend(q, k, v, sinks=sinks, causal=causal)[0]


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor, *, s_aux: Tensor, causal: bool) -> Tensor:
    return attend(q, k, v, sinks=s_aux, causal=causal, wide=q.dtype)[0]


@pytest.mark.stress(4, "function", "dtype")
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


@pytest.mark.stress(2)
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
        said = refused(r"\Adsink is wrong: .* head \d", out.detach(), q, k, v, dsink=wrong, **given)
        assert "dq is wrong" not in said
    refused("dsink has the shape", out.detach(), q, k, v, dsink=dsink[:2], **given)


def test_sums_over_parts_in_the_dtype_of_a_sink_are_rounding() -> None:
    q, k, v, dout = tensors("float64", heads_kv=HEADS)

    def by_rows(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        """One row at a time, each with a float32 sink of its own."""
        return torch.cat([in_float32(row, k, v, sinks=1.0 * sinks) for row in q.split(1, 1)], 1)

    for seed in range(4):
        assert accuracy.assert_close(by_rows, q, k, v, dout=dout, sinks=sinks_of(seed))["dsink"] > 0
