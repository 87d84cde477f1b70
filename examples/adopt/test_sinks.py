"""A learned sink a head: its gradient is compared, too."""

import pytest
import torch

import accuracy

generator = torch.Generator().manual_seed(0)
Q, DOUT = (torch.randn(1, 128, 8, 32, generator=generator) for _ in range(2))  # (B, S, H, D)
K, V = (torch.randn(1, 128, 2, 32, generator=generator) for _ in range(2))
SINKS = torch.linspace(-1.0, 2.0, 8)


def attention(q, k, v, *, causal, softmax_scale, sinks, twice=()):
    """twice: the rows in which the planted fault counts the sink again."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    counts = torch.ones(q.shape[1])
    counts[list(twice)] = 2.0
    sink = (sinks[:, None] + counts.log()).expand(q.shape[0], -1, -1)[..., None]
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def test_out_and_gradients_with_that_of_the_sinks():
    errors = accuracy.assert_close(attention, Q, K, V, dout=DOUT, causal=True, sinks=SINKS)
    assert "dsink" in errors


def test_a_sink_counted_twice_in_one_row_is_found_where_few_wrong_elements_pass():
    def wrong(q, k, v, *, causal, softmax_scale, sinks):
        return attention(q, k, v, causal=causal, softmax_scale=softmax_scale, sinks=sinks, twice=(100,))

    how = {"causal": True, "softmax_scale": 32**-0.5, "sinks": SINKS}
    off = (wrong(Q, K, V, **how) - attention(Q, K, V, **how)).abs() > 1e-3
    assert 0 < off.float().mean() < 0.01  # a rule that lets 1% of the elements differ says nothing
    with pytest.raises(AssertionError):
        accuracy.assert_close(wrong, Q, K, V, dout=DOUT, causal=True, sinks=SINKS)
