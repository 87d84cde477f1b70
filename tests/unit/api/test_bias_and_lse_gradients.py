"""`assert_close(..., dlse=)` and the gradient of a bias: compared where they are, found where ignored or confused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy

DTYPES = ("bfloat16", "float16", "float32", "float64")
BATCH, QUERIES, KEYS, HEADS, DIM = 2, 40, 56, 4, 16
BIASES = {
    "full": (BATCH, HEADS, QUERIES, KEYS), "by head": (HEADS, QUERIES, KEYS), "of keys": (BATCH, 1, 1, KEYS),
    "of all": (QUERIES, KEYS), "by head and key": (1, HEADS, 1, KEYS),
}  # fmt: skip


def tensors(dtype: str, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """q, k, v, dout; dlse, in float32 or wider."""
    generator, form = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    shapes = ((BATCH, n, heads, DIM) for n, heads in ((QUERIES, HEADS), (KEYS, 2), (KEYS, 2), (QUERIES, HEADS)))
    drawn = [torch.randn(shape, generator=generator).to(form) for shape in shapes]
    return drawn, 2 * torch.randn(BATCH, HEADS, QUERIES, generator=generator).to(wider(form))


def bias_of(name: str, dtype: str, seed: int = 0) -> Tensor:
    drawn = torch.randn(BIASES[name], generator=torch.Generator().manual_seed(100 + seed))
    return drawn.to(getattr(torch, dtype)).requires_grad_()


def wider(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, form: torch.dtype) -> tuple[Tensor, Tensor]:
    """out and lse, of sums in a dtype."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).to(form) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(form), k) * q.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias.to(form)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    return out.to(q.dtype), scores.logsumexp(-1)


def wide(q: Tensor, k: Tensor, v: Tensor, *, attn_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, attn_bias, wider(q.dtype))


def narrow(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, bias, q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [wide, narrow])
def test_healthy_gradients_through_lse_and_of_a_bias_pass(function: Callable[..., Any], dtype: str) -> None:
    for seed, name in enumerate(BIASES):
        inputs, dlse = tensors(dtype, seed)
        *qkv, dout = inputs
        bias = bias_of(name, dtype, seed)
        for how in ({"dlse": dlse}, {"attn_mask": bias}, {"attn_mask": bias, "dlse": dlse}):
            found = accuracy.assert_close(function, *qkv, dout=dout, **how)  # type: ignore[arg-type]
            assert set(found) == {"out", "lse", "dq", "dk", "dv"} | ({"dbias"} if "attn_mask" in how else set())
            assert dtype != "float64" or max(found.values()) < 1e-12, (name, found)


def returned(dtype: str, name: str = "full") -> dict[str, Any]:
    """What `assert_close` takes of a right attention with a bias, and a gradient through lse."""
    inputs, dlse = tensors(dtype)
    bias = bias_of(name, dtype)
    leaves = [x.requires_grad_() for x in (*inputs[:3], bias)]
    out, lse = wide(*leaves[:3], attn_bias=bias)
    gradients = torch.autograd.grad([out, lse], leaves, [inputs[3], dlse])
    found = dict(zip(("dq", "dk", "dv", "dbias"), gradients, strict=True))
    q, k, v = (x.detach() for x in leaves[:3])
    return found | {"actual": out.detach(), "q": q, "k": k, "v": v, "dout": inputs[3], "dlse": dlse, "attn_mask": bias}


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: 2 * x, "its negative": lambda x: -x, "none": torch.zeros_like,
    "of another key": lambda x: x.roll(1, -1),
    "of another head": lambda x: x.roll(1, -3), "transposed heads and items": lambda x: x.flip(0),
    "one row not": lambda x: x.index_fill(-2, torch.tensor([7]), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_gradient_of_a_bias_is_found_and_nothing_else_is_accused(dtype: str) -> None:
    given = returned(dtype)
    assert "dbias" in accuracy.assert_close(**given)
    for name, change in WRONG.items():
        with pytest.raises(AssertionError, match=r"\Adbias is wrong: .* query \d+, key \d+") as caught:
            accuracy.assert_close(**given | {"dbias": change(given["dbias"])})
        assert "dq is wrong" not in str(caught.value), name


def test_a_bias_s_gradient_that_is_summed_over_the_wrong_axis_is_found() -> None:
    given = returned("bfloat16", "of keys")
    full = returned("bfloat16")["dbias"]
    assert "dbias" in accuracy.assert_close(**given)
    for wrong in (full.sum((0, 1, 2), keepdim=True).expand_as(given["dbias"]), 1.1 * given["dbias"]):
        with pytest.raises(AssertionError, match=r"\Adbias is wrong"):
            accuracy.assert_close(**given | {"dbias": wrong})


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_function_that_ignores_the_gradient_of_lse_or_turns_it_round_is_found(dtype: str) -> None:
    (*qkv, dout), dlse = tensors(dtype)

    def ignoring(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q, k, v)
        return out, lse.detach() + 0 * lse

    def detached(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q, k, v)
        return out, lse.detach()

    for fn in (ignoring, detached):
        with pytest.raises(AssertionError, match="the gradient through lse is ignored"):
            accuracy.assert_close(fn, *qkv, dout=dout, dlse=dlse)

    def turned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q, k, v)
        return out, 2 * lse.detach() - lse

    with pytest.raises(AssertionError, match=r"\Adq is wrong.*\ndk is wrong") as caught:
        accuracy.assert_close(turned, *qkv, dout=dout, dlse=dlse)
    assert "ignored" not in str(caught.value)


def test_no_error_is_beyond_the_certain_bound() -> None:
    for dtype in ("bfloat16", "float16"):
        for name in BIASES:
            inputs, dlse = tensors(dtype)
            dlse, bias = dlse.to(inputs[0].dtype), bias_of(name, dtype)
            exact, rounded = (
                torch.autograd.grad(attend(*leaves, form), leaves, [inputs[3].to(form), dlse.to(form)])
                for form in (torch.float64, inputs[0].dtype)
                for leaves in [[x.detach().to(form).requires_grad_() for x in (*inputs[:3], bias)]]
            )
            found = accuracy.bounds(*inputs, dlse=dlse, attn_mask=bias)
            for tensor, right, wrong in zip(("dq", "dk", "dv", "dbias"), exact, rounded, strict=True):
                certain = found[tensor].certain if tensor in found else None
                assert certain is None or ((wrong.double() - right).abs() <= certain).all(), (dtype, name, tensor)


def test_dlse_of_packed_sequences_may_be_an_array_and_a_wrong_lse_is_named_by_its_shape() -> None:
    (q, k, v, dout), dlse = tensors("float32")

    def packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = wide(q[None], k[None], v[None])
        return out[0], lse[0]

    given = {"q": q[0], "k": k[0], "v": v[0], "dout": dout[0], "dlse": dlse[0].numpy(), "layout": "thd"}
    assert "dk" in accuracy.assert_close(packed, **given)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"\Alse has the shape \(40, 4\), expected \(4, 40\) \(head, token\)"):
        accuracy.assert_close(lambda *x: (packed(*x)[0], packed(*x)[1].T), **given)  # type: ignore[arg-type]


def test_numbers_whose_squares_float64_does_not_hold_are_no_errors() -> None:
    (q, k, v, dout), _ = tensors("float64")
    accuracy.assert_close(wide, 20 * q, 20 * k, v, dout=dout)
    accuracy.assert_close(wide, q, k, v, dout=1e-170 * dout)


def test_sums_over_parts_in_the_dtype_of_a_sink_are_rounding() -> None:
    (q, k, v, dout), _ = tensors("float64")

    def by_rows(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        ones = (sinks[None, :, None, None].expand(len(q), -1, 1, 1) for _ in range(q.shape[1]))
        weights = (torch.cat([torch.einsum("bhd,bkhd->bhk", q[:, i], k)[:, :, None] / 4, one.double()], -1)
                   for i, one in enumerate(ones))  # fmt: skip
        return torch.cat([torch.einsum("bhqk,bkhd->bqhd", w.softmax(-1)[..., :-1], v) for w in weights], 1)

    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    for seed in range(4):
        sinks = torch.randn(HEADS, generator=torch.Generator().manual_seed(seed))
        assert accuracy.assert_close(by_rows, q, k, v, dout=dout, sinks=sinks)["dsink"] > 0


def test_a_mistake_is_one_line() -> None:
    (q, k, v, dout), dlse = tensors("float32")
    for how, says in (
        ({"dlse": dlse[:, :1]}, r"dlse came as \(2, 1, 40\); .* \(2, 4, 40\)"),
        ({"dbias": dlse}, "dbias came without a bias"),
        ({"dlse": dlse, "dout": None}, "gradients need dout"),
        ({"dlse": dlse / 0}, "not finite"),
    ):  # fmt: skip
        with pytest.raises(accuracy.ConfigError, match=says) as caught:
            accuracy.assert_close(wide if "dbias" not in how else q, q, k, v, **{"dout": dout} | how)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    with pytest.raises(accuracy.ConfigError, match="does not get it"):
        accuracy.assert_close(lambda q, k, v: wide(q, k, v), q, k, v, dout=dout, attn_mask=bias_of("full", "float32"))
    with pytest.raises(accuracy.ConfigError, match="returns no lse"):
        accuracy.assert_close(lambda q, k, v: wide(q, k, v)[0], q, k, v, dout=dout, dlse=dlse)
