"""The call as its users write it: layouts, packed sequences, windows, arrays of others, any device; and functions that
are known by their names, torch's, flash-attn's and flex_attention, also inside others."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from tests import strangers
from tests.strangers import refused

BORDERS, KEYS = [0, 30, 30, 96], [0, 40, 52, 128]


def tensors(batch: int = 2, keys: int = 96, heads_kv: int = 2, queries: int = 96) -> list[Tensor]:
    return strangers.tensors("float32", queries, keys, batch=batch, heads_kv=heads_kv)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None) -> Tensor:
    return strangers.attend(q, k, v, causal=causal, bias=mask)[0]


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "sbhd": lambda q, k, v, causal: attend(*(x.transpose(0, 1) for x in (q, k, v)), causal).transpose(0, 1),
    "kvpacked": lambda q, kv, causal: attend(q, *kv.unbind(2), causal),
    "qkvpacked": lambda qkv, causal: attend(*qkv.unbind(2), causal),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_called_as_it_is_named(layout: str) -> None:
    given = tensors(heads_kv=4 if layout == "qkvpacked" else 2)
    q, k, v, dout = (x.transpose(0, 1).contiguous() for x in given) if layout == "sbhd" else given
    how = {"dout": dout, "layout": layout}
    found = accuracy.assert_close(LAYOUTS[layout], q, k, v, causal=True, **how)
    assert set(found) == {"out", "dq", "dk", "dv"}
    refused("dq is wrong", LAYOUTS[layout], q, k, v, causal=False, softmax_scale=0.2, **how)


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    causal: bool = False, late: int = 0,
) -> Tensor:  # fmt: skip
    """As flash_attn_varlen_func is called; late: the planted fault begins a document's keys too early."""
    assert (max_seqlen_q, max_seqlen_k) == tuple(int(x.diff().max()) for x in (cu_seqlens_q, cu_seqlens_k))
    out = torch.zeros_like(q)
    places = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:], strict=True)
    for begin, end, first, last in places:
        keys = slice(max(0, int(first) - late), int(last))
        if end > begin:
            out[begin:end] = attend(q[None, begin:end], k[None, keys], v[None, keys], causal)[0]
    return out


@pytest.mark.parametrize("borders", [BORDERS, KEYS])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_are_said_by_their_borders(borders: list[int], causal: bool) -> None:
    """As many keys as queries, and more of them, as where a prefix is in a cache; one of them is empty."""
    q, k, v, dout = (x[0] for x in tensors(1, borders[-1]))
    how: dict[str, Any] = {"dout": dout, "causal": causal, "layout": "thd"}
    how |= {"cu_seqlens": BORDERS} if borders is BORDERS else {
        "cu_seqlens_q": torch.tensor(BORDERS), "cu_seqlens_k": torch.tensor(borders)}  # fmt: skip
    assert set(accuracy.assert_close(varlen, q, k, v, **how)) == {"out", "dq", "dk", "dv"}
    refused("out is wrong", partial(varlen, late=1), q, k, v, **how)


def padded(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, cu_seqlens_q_padded: Tensor,
    counted: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As TransformerEngine's is called; counted: the planted fault sees so many keys of the padding."""
    out, lse = torch.full_like(q, 7.0), q.new_full((q.shape[1], q.shape[0]), 7.0)
    for begin, length in zip(cu_seqlens_q_padded.tolist(), cu_seqlens_q.diff().tolist(), strict=False):
        rows, keys = slice(begin, begin + length), slice(begin, begin + length + counted)
        (out[rows],), (lse[:, rows],) = strangers.attend(q[None, rows], k[None, keys], v[None, keys])
    return out, lse


@pytest.mark.parametrize("counted", [0, 1])
def test_what_pads_a_document_is_neither_seen_nor_compared(counted: int) -> None:
    given, borders, begins = [x[0].double().requires_grad_() for x in tensors(1)], [0, 21, 61, 63], [0, 24, 72, 96]
    inputs = [x.data for x in given[:3]]
    how: dict[str, Any] = {"layout": "thd", "cu_seqlens": borders, "cu_seqlens_padded": begins}
    how |= {"dout": given[3].detach()}
    out, lse = padded(*given[:3], *map(torch.tensor, (borders, borders, begins)), counted)
    own = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, given[:3], given[3]), strict=True))
    rows = [*range(12), *range(24, 36), *range(72, 84)]
    mine = {name: x[rows] for name, x in own.items()} | {"lse": lse.data[:, rows], "rows": rows}
    for fn, more in ((partial(padded, counted=counted), {}), (out.data[rows], mine)):
        with pytest.raises(AssertionError, match="out is wrong") if counted else nullcontext():
            assert max(accuracy.assert_close(fn, *inputs, **how, **more).values()) < 1e-12


def prefix(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Causal behind a prefix, which is longer in the second item."""
    return (query >= key) | (key < 10 + 20 * b)


def windowed(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: tuple[int, int] = (-1, -1), mask: Any = None
) -> Tensor:
    """As flash-attn says a window; mask: hides more, and may be written to."""
    i, j = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])
    left, right = window_size if window_size[0] >= 0 else (10**6, 10**6)
    seen = (j >= i - left) & (j <= i + (0 if causal else right))
    return attend(q, k, v, False, seen if mask is None else seen & mask)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_is_told_as_flash_attn_has_it(causal: bool) -> None:
    q, k, v, dout = tensors(keys=128)
    accuracy.assert_close(windowed, q, k, v, dout=dout, causal=causal, window=5)
    said = refused("out is wrong", lambda q, k, v: windowed(q, k, v, causal), q, k, v, causal=causal, window=5)
    assert "was not told causal, window" in said


def test_a_function_that_writes_to_its_inputs_is_refused_and_not_judged_by_a_mask_that_it_wrote() -> None:
    q, k, v, dout = tensors()
    mask = torch.rand(96, 96, generator=torch.Generator().manual_seed(1)) < 0.7
    kept = mask.clone()

    def writing(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return windowed(q, k, v, mask=mask.fill_(True))

    accuracy.assert_close(windowed, q, k, v, dout=dout, attn_mask=mask)
    refused("wrote to its inputs attn_mask", writing, q, k, v, dout=dout, attn_mask=mask)
    assert (mask == kept).all()
    refused("wrote to its inputs q", lambda q, k, v: q.mul_(0.25), q, k, v)


def test_another_shape_or_dtype_is_said_in_the_function_s_layout() -> None:
    q, k, v, _ = tensors()
    out = attend(q, k, v, False)
    token, head = r"\(2, 96, 4, 16\)", r"\(2, 4, 96, 16\)"
    refused(rf"\Aout has the shape {head}, expected {token}", lambda q, k, v: out.transpose(1, 2), q, k, v)
    refused(r"\Aout came as float64, expected float32", lambda q, k, v: out.double(), q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    refused(rf"\Aout has the shape {token}, expected {head}", lambda *given: out, q, k, v, layout="bhsd")


def test_none_is_not_given_and_attention_is_judged_in_inference_mode() -> None:
    names = ("causal", "window", "documents", "softcap", "sinks", "attn_mask", "rows", "dlse", "cu_seqlens")
    with torch.inference_mode():
        q, k, v, dout = tensors()
        assert "dq" in accuracy.assert_close(windowed, q, k, v, dout=dout)
    how: dict[str, Any] = {"dout": dout} | dict.fromkeys(names)
    assert set(accuracy.assert_close(windowed, q, k, v, **how)) == {"out", "dq", "dk", "dv"}


def test_arrays_of_another_library_are_taken() -> None:
    q, k, v, _ = tensors()
    out = attend(q, k, v, True)
    assert set(accuracy.assert_close(out.numpy(), *(x.numpy() for x in (q, k, v)), causal=True)) == {"out"}
    refused("out is wrong", np.roll(out.numpy(), 1, 1), *(x.numpy() for x in (q, k, v)), causal=True)
    mask = np.tril(np.ones((96, 96), dtype=bool))
    assert set(accuracy.assert_close(windowed, *(x.numpy() for x in (q, k, v)), attn_mask=mask)) == {"out"}


class WithoutFloat64(Tensor):
    """A tensor of a device that has no float64, until it is on the processor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if func is Tensor.cpu:
            return found.as_subclass(Tensor)
        if isinstance(found, Tensor) and found.dtype == torch.float64:
            raise TypeError("this device has no float64")
        return found


def test_a_device_without_float64_is_judged_on_the_processor() -> None:
    q, k, v, dout = (x.as_subclass(WithoutFloat64) for x in tensors(heads_kv=4))
    bias = torch.randn(96, 96).as_subclass(WithoutFloat64)

    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, factor: float = 1.0) -> Tensor:
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + attn_mask
        return factor * torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

    how = {"dout": dout, "attn_mask": bias}
    assert set(accuracy.assert_close(attention, q, k, v, **how)) == {"out", "dq", "dk", "dv"}  # type: ignore[arg-type]
    refused("out is wrong", lambda *x, attn_mask: attention(*x, attn_mask, 1.001), q, k, v, **how)


@pytest.mark.filterwarnings("ignore::UserWarning")  # flex_attention that is not compiled says so
def test_flex_attention_is_judged_by_its_own_mask() -> None:
    q, k, v, dout = (x.transpose(1, 2).contiguous() for x in tensors())
    block_mask = create_block_mask(prefix, 2, None, 96, 96, "cpu")
    for how in ({"mask_mod": prefix}, {"block_mask": block_mask}):
        assert set(accuracy.assert_close(flex_attention, q, k, v, **how)) == {"out"}  # type: ignore[arg-type]

    def naive(q: Tensor, k: Tensor, v: Tensor, mask_mod: Any, one_more: bool = False) -> Tensor:
        seen = create_mask(mask_mod, 2, 4, 96, 96, "cpu")
        return scaled_dot_product_attention(q, k, v, attn_mask=seen.roll(int(one_more), -1) | seen, enable_gqa=True)

    accuracy.assert_close(naive, q, k, v, dout=dout, layout="bhsd", mask_mod=prefix)
    refused("out is wrong", partial(naive, one_more=True), q, k, v, dout=dout, layout="bhsd", mask_mod=prefix)


@pytest.mark.parametrize("queries", [96, 40])
def test_torch_s_own_function_is_known_by_its_name_inside_partial_or_compile_too(queries: int) -> None:
    """Its layout, its word for grouped heads, and that its causal mask begins at the first key."""
    q, k, v, dout = (x.transpose(1, 2) for x in tensors(queries=queries))
    assert "dk" in accuracy.assert_close(scaled_dot_product_attention, q, k, v, dout=dout, causal=True)
    rows = accuracy.measure([scaled_dot_product_attention, flex_attention], seqlen=32, heads=2, heads_kv=2, head_dim=8)
    assert set(rows["mask"]) == {"full"}
    assert rows["error_rel"].max() < 1e-2
    block_mask = create_block_mask(prefix, 2, None, queries, 96, "cpu")
    inside = partial(scaled_dot_product_attention, is_causal=True)
    for how in ({"causal": True}, {}):
        assert "dk" in accuracy.assert_close(inside, q, k, v, dout=dout, **how)  # type: ignore[arg-type]
    said = refused("out is wrong", lambda *x: inside(*x, enable_gqa=True), q, k, v, layout="bhsd", softmax_scale=0.3)
    assert "was not told softmax_scale" in said
    for fn in (torch.compile(flex_attention, backend="eager"), partial(flex_attention, return_lse=True)):
        assert "out" in accuracy.assert_close(fn, q, k, v, block_mask=block_mask)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool = False) -> Tensor:
    return varlen(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal)


def test_packed_sequences_in_one_tensor_are_known_by_the_function_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = flash_attn_varlen_qkvpacked_func
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(**{fn.__name__: fn}))
    q, k, v, dout = (x[0] for x in tensors(1, heads_kv=4))
    assert "dk" in accuracy.assert_close(fn, q, k, v, dout=dout, cu_seqlens=BORDERS, causal=True)
    refused("out is wrong", fn, q, k, v.roll(1, 0), cu_seqlens=BORDERS, causal=True, softmax_scale=0.3)


@pytest.mark.gpu
def test_flash_attn_s_own_functions_need_no_wrapper_and_its_lse_has_no_gradient() -> None:
    flash = pytest.importorskip("flash_attn")
    q, k, v, dout = (x.to("cuda", torch.bfloat16) for x in tensors(heads_kv=4))
    accuracy.assert_close(flash.flash_attn_func, q, k, v, dout=dout, causal=True)
    accuracy.assert_close(flash.flash_attn_kvpacked_func, q, k, v, dout=dout, causal=True)
    packed = [x[0] for x in (q, k, v)]
    accuracy.assert_close(flash.flash_attn_varlen_func, *packed, dout=dout[0], causal=True, cu_seqlens=[0, 30, 96])
    refused("out is wrong", flash.flash_attn_func, q, k, v, causal=True, softmax_scale=0.25, documents=[40, 56])

    def with_lse(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
        return flash.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)[:2]

    how = {"dout": dout, "causal": True, "dlse": torch.ones(2, 4, 96, device="cuda")}
    refused("the gradient through lse is ignored", with_lse, q, k, v, **how)


@pytest.mark.gpu
def test_compiled_flex_attention_is_judged_with_gradients() -> None:
    q, k, v, dout = (x.transpose(1, 2).to("cuda", torch.bfloat16).contiguous() for x in tensors(2, 128, queries=128))
    block_mask = create_block_mask(prefix, 2, None, 128, 128, "cuda")
    found = accuracy.assert_close(torch.compile(flex_attention), q, k, v, dout=dout, block_mask=block_mask)
    assert set(found) == {"out", "dq", "dk", "dv"}
