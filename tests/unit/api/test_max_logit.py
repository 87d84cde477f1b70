"""`max_logit`: the largest scores that a function returns beside out, of rows, of items and of heads."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import accuracy
from tests.unit.api.attention import DTYPES, HEADS, attend, tensors, visible, wider


class Auxiliary(NamedTuple):
    """As flex_attention's: either may be missing."""

    lse: Tensor | None
    max_scores: Tensor | None


def largest(q: Tensor, k: Tensor, wide: torch.dtype, bias: Tensor) -> list[Tensor]:
    """The largest scores of rows: right, and those of the mistakes 'no mask', 'no cap' and 'no scale'."""
    raw = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k.repeat_interleave(HEADS // 2, 2).to(wide))
    scores = 5 * torch.tanh(raw * 0.25 / 5) + bias
    shown = scores.masked_fill(~visible(*scores.shape[-2:], q.device), -math.inf)
    return [x.amax(-1) for x in (shown, scores, raw, raw * 0.25)]


def reduced(rows: Tensor, dims: int) -> Tensor:
    return {1: rows.amax((0, 2)), 2: rows.amax(2), 3: rows}[dims]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_scores_are_compared_however_they_come(dtype: str, dims: int, device: str) -> None:
    """Scores in float32 and, as a stranger keeps them, in 16 bits; the planted faults forget the mask, cap or scale."""
    q, k, v, _ = tensors(dtype, device=device)
    bias = torch.randn(HEADS, 40, 56, generator=torch.Generator().manual_seed(0)).to(device, q.dtype)
    how = {"causal": True, "attn_mask": bias, "softcap": 5.0}
    for wide in {q.dtype, wider(q.dtype)}:
        out, lse = attend(q, k, v, causal=True, bias=bias, softcap=5.0, wide=wide)
        most, *wrong = (reduced(x, dims) for x in largest(q, k, wide, bias))
        ways = [(out, lse, most), (out, None, most), (out, Auxiliary(lse, most))]
        ways += [(out, most)] if dims == 1 else []
        for each in ways:
            found = accuracy.assert_close(each, q, k, v, **how)
            assert "max_logit" in found
            assert dtype != "float64" or found["max_logit"] < 1e-12
        accuracy.assert_close(out, q, k, v, max_logit=most.to(q.dtype), **how)
        for fault in wrong if dims == 3 else wrong[1:]:  # the largest of all may be seen without a mask, too
            with pytest.raises(AssertionError, match="max_logit is wrong"):
                accuracy.assert_close((out, lse, fault), q, k, v, **how)


def test_another_shape_is_refused_and_flash_attn_s_third_value_is_no_largest_score() -> None:
    q, k, v, _ = tensors()
    out, lse = attend(q, k, v)
    with pytest.raises(AssertionError, match="max_logit has the shape"):
        accuracy.assert_close((out, lse, lse[:, :, :3]), q, k, v)
    for weights in (torch.zeros(2, 4, 40, 56), torch.empty(0), torch.zeros(2, dtype=torch.int64)):
        assert set(accuracy.assert_close((out, lse, weights), q, k, v)) == {"out", "lse"}
