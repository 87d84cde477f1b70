"""`assert_close(..., attn_mask=)`: any mask and any bias, as torch takes them; one that is used otherwise is found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy

QUERIES, KEYS, HEADS = 24, 40, 4
DTYPES = ("bfloat16", "float16", "float32", "float64")


def tensors(dtype: str) -> list[Tensor]:
    """q, k, v, dout: fewer queries than keys, grouped heads."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, size, heads, 32) for size, heads in ((QUERIES, HEADS), (KEYS, 2), (KEYS, 2), (QUERIES, HEADS)))
    return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]


def masks(dtype: str) -> dict[str, Tensor]:
    """Boolean ones and biases, of every shape that broadcasts."""
    generator, form = torch.Generator().manual_seed(4), getattr(torch, dtype)
    distance = torch.arange(QUERIES)[:, None] + KEYS - QUERIES - torch.arange(KEYS)
    by_item = torch.rand(2, 1, QUERIES, KEYS, generator=generator) > 0.5
    by_item[..., 0] = True
    documents = torch.arange(QUERIES)[:, None] // 8 == torch.arange(KEYS) // 14
    slopes = (2.0 ** -torch.arange(1, HEADS + 1)).view(HEADS, 1, 1)
    table = torch.randn(HEADS, 2 * KEYS, generator=generator)
    return {
        "by batch item": by_item,
        "keys alone": (torch.arange(KEYS) > 3)[None],
        "documents": documents,
        "ALiBi": (-slopes * distance.abs()).to(form),
        "relative, as T5": table[:, distance + KEYS].to(form),
        "by every index": (3 * torch.randn(2, HEADS, QUERIES, KEYS, generator=generator)).to(form),
        "hidden by -inf": torch.zeros(QUERIES, KEYS).masked_fill(distance < 0, -torch.inf).to(form),
    }


def as_torch(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, attn_mask=attn_mask, enable_gqa=True).transpose(1, 2)


def naive(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor) -> Tensor:
    """All in its own dtype."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [as_torch, naive])
def test_healthy_attention_passes_under_any_mask(function: Callable[..., Tensor], dtype: str) -> None:
    *inputs, dout = tensors(dtype)
    for name, mask in masks(dtype).items():
        found = accuracy.assert_close(function, *inputs, dout=dout, attn_mask=mask)
        assert set(found) == {"out", "dq", "dk", "dv"}, name
        if dtype == "float64":
            assert max(found.values()) < 1e-12, name


def flipped(mask: Tensor) -> Tensor:
    return mask.flip(-1)


def other_heads(mask: Tensor) -> Tensor:
    return mask.roll(1, -3) if mask.dim() > 2 and mask.shape[-3] > 1 else mask.roll(1, -2)


class ForwardAlone(torch.autograd.Function):
    """Adds a bias in the forward; its backward computes the weights without it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, bias)
        return naive(q, k, v, bias=bias)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, bias = ctx.saved_tensors
        leaves = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            out = naive(*leaves, bias=torch.zeros_like(bias))
        return (*torch.autograd.grad(out, leaves, dout), None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", [flipped, other_heads])
def test_a_mask_that_is_used_otherwise_is_found(change: Callable[[Tensor], Tensor], dtype: str) -> None:
    *inputs, dout = tensors(dtype)
    for name in ("by batch item", "relative, as T5", "by every index"):

        def wrong(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
            return naive(q, k, v, bias=change(mask))

        with pytest.raises(AssertionError, match="out is wrong"):
            accuracy.assert_close(wrong, *inputs, dout=dout, attn_mask=masks(dtype)[name])


def test_a_bias_that_is_not_in_the_backward_is_found_in_the_gradients() -> None:
    *inputs, dout = tensors("bfloat16")

    def wrong(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: Tensor) -> Tensor:
        return ForwardAlone.apply(q, k, v, attn_bias)

    with pytest.raises(AssertionError, match=r"\Adq is wrong.*\ndk is wrong.*\ndv is wrong"):
        accuracy.assert_close(wrong, *inputs, dout=dout, attn_mask=masks("bfloat16")["by every index"])


def returned(mask: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """out, dq, dk, dv of the naive attention on bfloat16 numbers, computed in a dtype."""
    *inputs, dout = (x.to(dtype) for x in tensors("bfloat16"))
    leaves = [x.requires_grad_() for x in inputs]
    out = naive(*leaves, bias=mask.to(dtype) if mask.is_floating_point() else mask)
    return dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, leaves, dout)), strict=True))


def test_no_error_is_beyond_the_certain_bound() -> None:
    *inputs, dout = tensors("bfloat16")
    for mask in masks("bfloat16").values():
        exact, rounded = (returned(mask, dtype) for dtype in (torch.float64, torch.bfloat16))
        bounds = accuracy.bounds(*inputs, dout, attn_mask=mask)
        assert all(((rounded[name] - x).abs() <= bounds[name].certain).all() for name, x in exact.items())


def test_a_mistake_in_a_mask_is_one_line() -> None:
    q, k, v, _ = tensors("float32")
    fits = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    for mask, says in (
        (fits.T, r"has the shape \(40, 24\).*\(2, 4, 24, 40\)"), (fits.long(), "torch.int64"), ("causal", "is str"),
        (fits & False, "hides all keys of some query"), (fits / 0.0, "a key is hidden by -inf"),
    ):  # fmt: skip
        with pytest.raises(accuracy.ConfigError, match=says) as caught:
            accuracy.assert_close(naive, q, k, v, attn_mask=mask)
        assert "\n" not in str(caught.value)
