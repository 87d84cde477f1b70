"""`max_logit`: the largest scores that a function returns beside out, of rows, of items and of heads."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import accuracy
from tests.sampling import seeds

HEADS, SIZES = 4, ((40, 4), (56, 2), (56, 2), (40, 4))


class Auxiliary(NamedTuple):
    """As flex_attention's: either may be missing."""

    lse: Tensor | None
    max_scores: Tensor | None


def tensors(dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, size, heads, 16, generator=generator).to(device, dtype) for size, heads in SIZES]


def parts(q: Tensor, k: Tensor, v: Tensor, wide: torch.dtype, causal: bool, bias: Any, cap: float) -> list[Tensor]:
    """out, lse, and the largest scores of rows: right, and those of the mistakes 'no mask', 'no cap' and 'no scale'."""
    k, v = (x.repeat_interleave(HEADS // 2, 2).to(wide) for x in (k, v))
    raw = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k)
    scores = cap * torch.tanh(raw * 0.25 / cap) + bias
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(scores.shape[-1] - scores.shape[-2])
    shown = scores.masked_fill(~seen, -math.inf) if causal else scores
    out = torch.einsum("bhqk,bkhd->bqhd", shown.softmax(-1), v).to(q.dtype)
    return [out, shown.logsumexp(-1), shown.amax(-1), scores.amax(-1), raw.amax(-1), (raw * 0.25).amax(-1)]


def reduced(rows: Tensor, dims: int) -> Tensor:
    return {1: rows.amax((0, 2)), 2: rows.amax(2), 3: rows}[dims]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_largest_scores_are_compared_however_they_come(dtype: torch.dtype, dims: int, device: str) -> None:
    """Scores in float32 and, as a stranger keeps them, in 16 bits; the planted faults forget the mask, cap or scale."""
    for seed in seeds(4):
        q, k, v, _ = tensors(dtype, seed, device)
        bias = torch.randn(HEADS, 40, 56, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
        how = {"causal": True, "attn_mask": bias, "softcap": 5.0}
        for wide in {dtype, torch.promote_types(dtype, torch.float32)}:
            out, lse, most, *wrong = parts(q, k, v, wide, True, bias, 5.0)
            largest = reduced(most, dims)
            ways = [(out, lse, largest), (out, None, largest), (out, Auxiliary(lse, largest))]
            ways += [(out, largest)] if dims == 1 else []
            for each in ways:
                found = accuracy.assert_close(each, q, k, v, **how)
                assert "max_logit" in found
                assert dtype != torch.float64 or found["max_logit"] < 1e-12
            accuracy.assert_close(out, q, k, v, max_logit=largest.to(dtype), **how)
            for fault in wrong if dims == 3 else wrong[1:]:  # the largest of all may be seen without a mask, too
                with pytest.raises(AssertionError, match="max_logit is wrong"):
                    accuracy.assert_close((out, lse, reduced(fault, dims)), q, k, v, **how)


def test_what_is_none_is_refused_in_a_line() -> None:
    q, k, v, _ = tensors(torch.float32)
    out, lse, most, *_ = parts(q, k, v, torch.float32, False, 0.0, 1e9)
    with pytest.raises(AssertionError, match="max_logit has the shape"):
        accuracy.assert_close((out, lse, most[:, :, :3]), q, k, v)
    for weights in (torch.zeros(2, 4, 40, 56), torch.empty(0), torch.zeros(2, dtype=torch.int64)):  # flash-attn's third
        assert set(accuracy.assert_close((out, lse, weights), q, k, v)) == {"out", "lse"}
    with pytest.raises(accuracy.ConfigError, match="4 values came"):
        accuracy.assert_close((out, lse, most, most), q, k, v)
