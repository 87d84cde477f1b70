"""`score_mod=` of flex_attention: one that adds to scores, caps them or hides keys has limits; any other is refused."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import accuracy
from tests.sampling import seeds
from tests.strangers import DTYPES, HEADS, attend, refused, tensors

QUERIES, KEYS = 40, 56
TABLE = torch.randn(HEADS, 2 * KEYS, generator=torch.Generator().manual_seed(5))


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Slopes that no format has exactly."""
    return score - torch.exp2(-(h + 1) * 8.0 / 12) * (q - k).abs()


def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + TABLE.to(score.device)[h, q - k + KEYS]


def causal(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(q >= k, score, -math.inf)


def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 5 * torch.tanh(score / 5) + h * ((q + k) % 3)


def naive(q: Tensor, k: Tensor, v: Tensor, *, score_mod: Callable[..., Tensor]) -> Tensor:
    """In float32 at least, as flex_attention."""
    sizes = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
    places = [torch.arange(size, device=q.device).view(-1, *[1] * (3 - at)) for at, size in enumerate(sizes)]
    return attend(q, k, v, change=lambda scores: score_mod(scores, *places))[0]


@pytest.mark.stress(4, "score_mod", "dtype")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score_mod", [alibi, relative, causal, capped], ids=lambda each: each.__name__)
def test_a_score_mod_is_in_the_reference_and_other_heads_are_found(
    score_mod: Callable[..., Tensor], dtype: str, device: str
) -> None:
    q, k, v, dout = tensors(dtype, heads_kv=HEADS, device=device)
    found = accuracy.assert_close(naive, q, k, v, dout=dout, score_mod=score_mod)
    assert set(found) == {"out", "dq", "dk", "dv"}
    if dtype == "float64":
        assert max(found.values()) < 1e-12

    def wrong(*given: Tensor, score_mod: Callable[..., Tensor]) -> Tensor:
        return naive(*given, score_mod=lambda s, b, h, q, k: score_mod(s, b, (h + 1) % HEADS, q - 1, k))

    refused("out is wrong", wrong, q, k, v, dout=dout, score_mod=score_mod)


@pytest.mark.stress(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_healthy_attention_passes_where_the_cap_is_reached(dtype: str) -> None:
    """The slope, 1 - tanh^2, cancels there."""
    for seed in seeds(8):
        q, k, v, dout = tensors(dtype, 48, 48, batch=1, heads_kv=HEADS, seed=seed)
        for cap in (1.0, 5.0, 20.0):

            def reached(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor, cap: float = cap) -> Tensor:
                return cap * torch.tanh(score / cap)

            accuracy.assert_close(naive, 10 * q, 10 * k, v, dout=dout, score_mod=reached)


def test_a_cap_that_the_backward_lacks_is_found() -> None:
    *inputs, dout = tensors(heads_kv=HEADS)

    def without_slope(score: Tensor, *places: Tensor) -> Tensor:
        return score + (capped(score, *places) - score).detach()

    def wrong(q: Tensor, k: Tensor, v: Tensor, *, score_mod: object) -> Tensor:
        return naive(q, k, v, score_mod=without_slope)

    refused("dq is wrong", wrong, *inputs, dout=dout, score_mod=capped)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_passes_with_a_block_mask_beside_it() -> None:
    q, k, v, _ = (x.transpose(1, 2) for x in tensors("bfloat16", heads_kv=HEADS))
    block = create_block_mask(lambda b, h, q, k: q >= k, None, None, QUERIES, KEYS, "cpu")
    accuracy.assert_close(flex_attention, q, k, v, score_mod=alibi)
    accuracy.assert_close(flex_attention, q, k, v, score_mod=alibi, block_mask=block)
    out = flex_attention(q, k, v, score_mod=alibi)
    refused("out is wrong", out, q, k, v, layout="bhsd", score_mod=alibi, block_mask=block)
