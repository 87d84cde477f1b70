"""Limits of a row hold whatever its width, and are made on the device of the tensors."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy


def inputs(head_dim: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v, dout = (torch.randn(1, 2, 64, head_dim, generator=generator) for _ in range(4))
    return 3 * q, 3 * k, v, dout


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("head_dim", [128, 256, 512])
def test_dims_of_a_row_share_their_errors_however_many_they_are(head_dim: int) -> None:
    for seed in range(12):
        q, k, v, dout = inputs(head_dim, seed)
        accuracy.assert_close(attend, q, k, v, dout=dout, causal=True, layout="bhsd")


@pytest.mark.gpu
def test_limits_are_made_where_the_tensors_are() -> None:
    q, k, v, dout = (x.cuda() for x in inputs(64, 0))
    accuracy.assert_close(attend, q, k, v, dout=dout, causal=True, layout="bhsd")
