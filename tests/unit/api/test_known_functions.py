"""Functions known by their names need no wrapper: torch's, flash-attn's, flex_attention, also inside others."""

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from tests.unit.api.test_calling import BORDERS, prefix, tensors, varlen


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
    with pytest.raises(AssertionError, match="out is wrong"):
        accuracy.assert_close(lambda q, k, v, mask_mod: naive(q, k, v, mask_mod, True), q, k, v, dout=dout,
                              layout="bhsd", mask_mod=prefix)  # fmt: skip


@pytest.mark.parametrize("queries", [96, 40])
def test_torch_s_own_function_is_known_by_its_name(queries: int) -> None:
    """Its layout, its word for grouped heads, and that its causal mask begins at the first key."""
    q, k, v, dout = (x.transpose(1, 2) for x in tensors(queries=queries))
    assert "dk" in accuracy.assert_close(scaled_dot_product_attention, q, k, v, dout=dout, causal=True)
    rows = accuracy.measure([scaled_dot_product_attention, flex_attention], seqlen=32, heads=2, heads_kv=2, head_dim=8)
    assert set(rows["mask"]) == {"full"}
    assert rows["error_rel"].max() < 1e-2


@pytest.mark.parametrize("queries", [96, 40])
def test_a_function_inside_partial_or_compile_is_known_too(queries: int) -> None:
    q, k, v, dout = (x.transpose(1, 2) for x in tensors(queries=queries))
    block_mask = create_block_mask(prefix, 2, None, queries, 96, "cpu")
    inside = partial(scaled_dot_product_attention, is_causal=True)
    for how in ({"causal": True}, {}):
        assert "dk" in accuracy.assert_close(inside, q, k, v, dout=dout, **how)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="out is wrong") as caught:
        accuracy.assert_close(lambda *x: inside(*x, enable_gqa=True), q, k, v, layout="bhsd", softmax_scale=0.3)
    assert "was not told softmax_scale" in str(caught.value)
    for fn in (torch.compile(flex_attention, backend="eager"), partial(flex_attention, return_lse=True)):
        assert "out" in accuracy.assert_close(fn, q, k, v, block_mask=block_mask)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, causal: bool = False) -> Tensor:
    return varlen(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal)


def test_packed_sequences_in_one_tensor_are_known_by_the_function_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = flash_attn_varlen_qkvpacked_func
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(**{fn.__name__: fn}))
    q, k, v, dout = (x[0] for x in tensors(1, heads_kv=4))
    assert "dk" in accuracy.assert_close(fn, q, k, v, dout=dout, cu_seqlens=BORDERS, causal=True)
    with pytest.raises(AssertionError, match="out is wrong"):
        accuracy.assert_close(fn, q, k, v.roll(1, 0), cu_seqlens=BORDERS, causal=True, softmax_scale=0.3)


@pytest.mark.gpu
def test_flash_attn_s_own_functions_need_no_wrapper_and_its_lse_has_no_gradient() -> None:
    flash = pytest.importorskip("flash_attn")
    q, k, v, dout = (x.to("cuda", torch.bfloat16) for x in tensors(heads_kv=4))
    accuracy.assert_close(flash.flash_attn_func, q, k, v, dout=dout, causal=True)
    accuracy.assert_close(flash.flash_attn_kvpacked_func, q, k, v, dout=dout, causal=True)
    packed = [x[0] for x in (q, k, v)]
    accuracy.assert_close(flash.flash_attn_varlen_func, *packed, dout=dout[0], causal=True, cu_seqlens=[0, 30, 96])
    with pytest.raises(AssertionError, match="out is wrong"):
        accuracy.assert_close(flash.flash_attn_func, q, k, v, causal=True, softmax_scale=0.25, documents=[40, 56])

    def with_lse(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
        return flash.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)[:2]

    with pytest.raises(AssertionError, match="the gradient through lse is ignored"):
        accuracy.assert_close(with_lse, q, k, v, dout=dout, causal=True, dlse=torch.ones(2, 4, 96, device="cuda"))


@pytest.mark.gpu
def test_compiled_flex_attention_is_judged_with_gradients() -> None:
    q, k, v, dout = (x.transpose(1, 2).to("cuda", torch.bfloat16).contiguous() for x in tensors(2, 128, queries=128))
    block_mask = create_block_mask(prefix, 2, None, 128, 128, "cuda")
    found = accuracy.assert_close(torch.compile(flex_attention), q, k, v, dout=dout, block_mask=block_mask)
    assert set(found) == {"out", "dq", "dk", "dv"}
