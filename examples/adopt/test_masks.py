"""Attention under a mask or a bias of the caller's, with gradients of a random dout."""

import pytest
import torch
import torch.nn.functional as F

import accuracy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)
Q, K, V, DOUT = (torch.randn(2, 4, 96, 32, generator=generator).to(DEVICE) for _ in range(4))  # (B, H, S, D)
DOCUMENTS = torch.tensor([[0] * 40 + [1] * 56, [0] * 72 + [1] * 24], device=DEVICE)  # by batch row
MASK = (DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None, :]) & torch.ones(
    96, 96, dtype=torch.bool, device=DEVICE
).tril()
SLOPES = 2.0 ** -torch.arange(1, 5)
BIAS = -(SLOPES[:, None, None] * (torch.arange(96)[:, None] - torch.arange(96)).abs()).to(DEVICE)


def test_documents_that_differ_by_batch_row():
    accuracy.assert_close(F.scaled_dot_product_attention, Q, K, V, dout=DOUT, layout="bhsd", attn_mask=MASK)


def test_a_bias():
    accuracy.assert_close(F.scaled_dot_product_attention, Q, K, V, dout=DOUT, layout="bhsd", attn_mask=BIAS)


def test_a_bias_and_its_gradient():
    bias = BIAS.clone().requires_grad_()
    errors = accuracy.assert_close(F.scaled_dot_product_attention, Q, K, V, dout=DOUT, layout="bhsd", attn_mask=bias)
    assert "dbias" in errors


def test_a_bias_gradient_of_one_head_alone_is_found():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, bias):
            return bias.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient[:1].expand_as(gradient)

    def attention(q, k, v, attn_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=Wrong.apply(attn_mask))

    with pytest.raises(AssertionError, match="dbias is wrong"):
        accuracy.assert_close(attention, Q, K, V, dout=DOUT, layout="bhsd", attn_mask=BIAS.clone().requires_grad_())


def test_a_mask_that_lets_one_key_too_many_pass_is_found():
    def wrong(q, k, v, attn_mask):
        one_more = torch.eye(96, dtype=torch.bool, device=q.device).roll(1, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask | one_more)

    with pytest.raises(AssertionError):
        accuracy.assert_close(wrong, Q, K, V, dout=DOUT, layout="bhsd", attn_mask=MASK)
