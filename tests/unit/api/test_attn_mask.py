"""`assert_close(..., attn_mask=, dlse=)`: any mask and bias as torch takes them, and the gradients of bias and lse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from tests.unit.api.attention import DTYPES, HEADS, attend, tensors, wider

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
    shapes = ((2, HEADS, QUERIES, KEYS), (2, 1, 1, KEYS), (QUERIES, KEYS), (1, HEADS, 1, KEYS))
    by_index, of_keys, of_all, by_head_and_key = (torch.randn(shape, generator=generator) for shape in shapes)
    return {
        "by batch item": by_item,
        "keys alone": (torch.arange(KEYS) > 3)[None],
        "documents": torch.arange(QUERIES)[:, None] // 8 == torch.arange(KEYS) // 14,
        "hidden by -inf": torch.zeros(QUERIES, KEYS).masked_fill(distance < 0, -torch.inf).to(form),
    } | {
        name: x.to(form).requires_grad_()
        for name, x in {
            "ALiBi": -slopes * distance.abs(), "by every index": 3 * by_index, "of keys": of_keys, "of all": of_all,
            "by head and key": by_head_and_key,
        }.items()
    }  # fmt: skip


def as_torch(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, attn_mask=attn_mask, enable_gqa=True).transpose(1, 2)


def wide(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, bias=attn_bias)


def narrow(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, bias=bias, wide=q.dtype)


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
    return mask.roll(1, -3) if mask.dim() > 2 and mask.shape[-3] > 1 else mask.roll(1, -2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("change", [flipped, other_heads])
def test_a_mask_that_is_used_otherwise_is_found(change: Callable[[Tensor], Tensor], dtype: str) -> None:
    (q, k, v, dout), _ = given(dtype)
    for name in ("by batch item", "ALiBi", "by every index"):
        with pytest.raises(AssertionError, match="out is wrong"):
            accuracy.assert_close(
                lambda q, k, v, mask: narrow(q, k, v, bias=change(mask)), q, k, v, dout=dout,
                attn_mask=masks(dtype)[name].detach(),
            )  # fmt: skip


def test_a_bias_that_is_not_in_the_backward_is_found_in_the_gradients() -> None:
    (q, k, v, dout), _ = given("bfloat16")

    def forward_alone(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: Tensor) -> Tensor:
        plain = narrow(q, k, v)[0]
        return narrow(q, k, v, bias=attn_bias)[0].detach() + plain - plain.detach()

    with pytest.raises(AssertionError, match=r"dq is wrong.*\ndk is wrong.*\ndv is wrong"):
        accuracy.assert_close(forward_alone, q, k, v, dout=dout, attn_mask=masks("bfloat16")["by every index"].detach())


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_gradient_of_a_bias_is_found_and_nothing_else_is_accused(dtype: str) -> None:
    how = returned(dtype)
    assert "dbias" in accuracy.assert_close(**how)
    for name, change in WRONG.items():
        with pytest.raises(AssertionError, match=r"\Adbias is wrong: .* query \d+, key \d+") as caught:
            accuracy.assert_close(**how | {"dbias": change(how["dbias"])})
        assert "dq is wrong" not in str(caught.value), name


def test_a_bias_s_gradient_that_is_summed_over_the_wrong_axis_is_found() -> None:
    how = returned("bfloat16", "of keys")
    over_items = how["dbias"].sum(0, keepdim=True).expand_as(how["dbias"])
    assert "dbias" in accuracy.assert_close(**how)
    for wrong in (over_items, 1.1 * how["dbias"]):
        with pytest.raises(AssertionError, match=r"\Adbias is wrong"):
            accuracy.assert_close(**how | {"dbias": wrong})


@pytest.mark.parametrize(
    ("factor", "says"),
    [(None, "the gradient through lse is ignored"), (0, "the gradient through lse is ignored"),
     (-1, r"\Adq is wrong.*\ndk is wrong")],
)  # fmt: skip
def test_a_function_that_ignores_the_gradient_of_lse_or_turns_it_round_is_found(factor: Any, says: str) -> None:
    """factor: of the gradient; None: lse has none."""

    def wrong(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q, k, v)
        return out, lse.detach() if factor is None else lse.detach() + factor * (lse - lse.detach())

    for dtype in DTYPES:
        (*qkv, dout), dlse = given(dtype)
        with pytest.raises(AssertionError, match=says) as caught:
            accuracy.assert_close(wrong, *qkv, dout=dout, dlse=dlse)
        assert ("ignored" in str(caught.value)) == (factor != -1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_error_is_beyond_the_certain_bound(dtype: str) -> None:
    inputs, dlse = given(dtype)
    dlse = dlse.to(inputs[0].dtype)
    for name, mask in masks(dtype).items():
        wants = mask.requires_grad
        bounds = accuracy.bounds(*inputs, dlse=dlse, attn_mask=mask)
        results = []
        for form in (torch.float64, inputs[0].dtype):
            *leaves, dout = (x.to(form).requires_grad_() for x in inputs)
            bias = mask.detach().to(form if mask.is_floating_point() else torch.bool).requires_grad_(wants)
            both = attend(*leaves, bias=bias, wide=form)
            asked = [*leaves, *([bias] if wants else [])]
            results.append([both[0], *torch.autograd.grad(both, asked, [dout, dlse.to(form)])])
        for tensor, right, wrong in zip(("out", "dq", "dk", "dv", "dbias"), *results, strict=False):
            if tensor in bounds:
                assert ((wrong.double() - right).abs() <= bounds[tensor].certain).all(), (name, tensor)


def test_dlse_of_packed_sequences_may_be_an_array_and_a_wrong_lse_is_named_by_its_shape() -> None:
    inputs, dlse = given("float32")
    q, k, v, dout = (x[0] for x in inputs)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q[None], k[None], v[None])
        return out[0], lse[0]

    how: dict[str, Any] = {"q": q, "k": k, "v": v, "dout": dout, "dlse": dlse[0].numpy(), "layout": "thd"}
    assert "dk" in accuracy.assert_close(packed, **how)
    with pytest.raises(AssertionError, match=r"\Alse has the shape \(24, 4\), expected \(4, 24\)"):
        accuracy.assert_close(lambda *x: (packed(*x)[0], packed(*x)[1].T), **how)


def test_numbers_whose_squares_float64_does_not_hold_are_no_errors() -> None:
    (q, k, v, dout), _ = given("float64")
    accuracy.assert_close(wide, 20 * q, 20 * k, v, dout=dout)
    accuracy.assert_close(wide, q, k, v, dout=1e-170 * dout)
