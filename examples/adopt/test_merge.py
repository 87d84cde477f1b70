"""A merge of two partial attentions by itself, with rows that see no key of one part."""

import pytest
import torch

import accuracy


def merge_attn_states(partial_outs, partial_lses, scale=1.0):
    """out (S, H, D) and lse (H, S) of two parts; scale: of the exponents, which the planted fault has wrong."""
    prefix, suffix = partial_lses
    top = torch.maximum(prefix, suffix).clamp_min(-1e30)
    weights = [torch.exp((lse - top) * scale) for lse in (prefix, suffix)]
    total = weights[0] + weights[1]
    out = sum((w / total).T[..., None] * x.float() for w, x in zip(weights, partial_outs, strict=True))
    return out.to(partial_outs[0].dtype), top + total.log()


def partials(tokens=64, heads=4, dim=32, apart=0.001):
    """apart: how far a part's lse is from the other's; the first rows have no key in the prefix."""
    generator = torch.Generator().manual_seed(0)
    outs = torch.randn(2, tokens, heads, dim, generator=generator)
    lses = 3 + apart * torch.randn(2, heads, tokens, generator=generator)
    lses[0, :, :5] = -torch.inf
    return outs, lses


def test_merge_is_right():
    accuracy.assert_merge_close(merge_attn_states, *partials())


def test_a_wrong_base_is_found_where_a_fixed_tolerance_passes():
    outs, lses = partials()

    def wrong(partial_outs, partial_lses):
        return merge_attn_states(partial_outs, partial_lses, scale=1.4427)[0], merge_attn_states(*partials())[1]

    right = merge_attn_states(outs, lses)[0]
    torch.testing.assert_close(wrong(outs, lses)[0], right, atol=1e-3, rtol=1e-2)
    with pytest.raises(AssertionError):
        accuracy.assert_merge_close(wrong, outs, lses)
