"""Masks, caps and sinks, also of functions that normalise by their lse, sum exp(s - lse) v: the rounding of lse is one
of all weights of a row."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.reference.float64 import attention
from tests.strangers import attend, refused, wider
from tests.unit.bound.test_bounds import HOW, TENSORS, drawn

WAYS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 9}, "softcap": {"softcap": 200.0}, "sinks": {"sinks": (40.0, -30.0, 3.0, 0.0)},
}  # fmt: skip


def wide(x: Tensor) -> Tensor:
    """(B, H, S, D), in float32 at least."""
    return x.transpose(1, 2).to(wider(x.dtype))


def scores(q: Tensor, k: Tensor, way: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | float]:
    """Scores, the sinks beside them, and the slope of their cap."""
    s, slope = wide(q) @ wide(k).mT * q.shape[-1] ** -0.5, 1.0
    if cap := way.get("softcap"):
        ratio = (s / cap).tanh()
        s, slope = cap * ratio, 1 - ratio.square()
    key, row = torch.arange(k.shape[1]), torch.arange(q.shape[1])[:, None]
    hidden = (key > row) | ((key - row).abs() > way.get("window", k.shape[1]))
    sinks = s.new_tensor(way.get("sinks", [-math.inf] * 4))[:, None, None].expand(*s.shape[:3], 1)
    return s.masked_fill(hidden, -math.inf), sinks, slope


class ByLse(torch.autograd.Function):
    """A forward that takes exp(s - lse), and a backward that reads lse and out as flash kernels' do."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, way: dict[str, Any], lse_dtype: torch.dtype) -> Tensor:
        s, sinks, _ = scores(q, k, way)
        lse = torch.logaddexp(s.logsumexp(-1, keepdim=True), sinks).to(lse_dtype)
        out = ((s - lse.to(s.dtype)).exp() @ wide(v)).transpose(1, 2).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.way = way
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        s, _, slope = scores(q, k, ctx.way)
        p, up = (s - lse.to(s.dtype)).exp(), wide(dout)
        delta = (up * wide(out)).sum(-1, keepdim=True)
        ds = p * (up @ wide(v).mT - delta) * slope * q.shape[-1] ** -0.5
        return *(x.transpose(1, 2).to(q.dtype) for x in (ds @ wide(k), ds.mT @ wide(q), p.mT @ up)), None, None


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Four pieces of the keys, each normalised by its lse, and weighted by exp(lse of the piece - lse)."""
    parts = [(s.logsumexp(-1, keepdim=True).clamp(min=-1e30), s) for s in scores(q, k, {})[0].chunk(4, -1)]
    lse = torch.cat([each for each, _ in parts], -1).logsumexp(-1, keepdim=True)
    values = wide(v).chunk(4, -2)
    outs = [(mine - lse).exp() * ((s - mine).exp() @ x) for (mine, s), x in zip(parts, values, strict=True)]
    return torch.stack(outs).sum(0).transpose(1, 2)


def inputs(name: str, dtype: str) -> tuple[Tensor, ...]:
    """scaled: scores 36 times as large; shifted: all near -400, as of a channel with massive activations."""
    q, k, v, dout = (x.clone() for x in drawn("gaussian", dtype)[0].tensors)
    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    if name == "scaled":
        q, k = 6 * q, 6 * k
    if name == "shifted":
        q, k = 0.3 * q, 0.3 * k
        q[..., 0], k[..., 0] = 1.0, -400 * q.shape[-1] ** 0.5
    return q, k, v, dout


@pytest.mark.stress(5, "way", "name")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("scaled", "float32"), ("shifted", "float32"), ("gaussian", "bfloat16"), ("scaled", "bfloat16"),
     ("scaled", "float64")],
)  # fmt: skip
def test_out_may_be_normalised_by_its_lse(name: str, dtype: str, way: str) -> None:
    """In the inputs' dtype: of bfloat16 lse is stored in that, scores and sums in float32."""
    q, k, v, dout = inputs(name, dtype)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ByLse.apply(q, k, v, WAYS[way], q.dtype)

    accuracy.assert_close(attend, q, k, v, dout=dout, causal=True, **WAYS[way])


def test_parts_may_be_merged_by_their_lse_and_float64_is_not_held_to_less_than_the_reference_errs_by() -> None:
    """The reference takes exp(s - lse): a softmax of large scores, divided by its sum, is nearer to the truth."""
    for name in ("scaled", "shifted"):
        q, k, v, dout = inputs(name, "float32")
        accuracy.assert_close(merged, q, k, v, dout=dout, causal=True, policy="kernel", pieces=4)
    q, k, v, dout = inputs("scaled", "float64")
    accuracy.assert_close(
        lambda q, k, v: attend(q, k, v, causal=True)[0], q, k, v, dout=dout, causal=True, policy="kernel"
    )


@pytest.mark.parametrize("step", [1, 2])
def test_a_row_is_not_off_by_20_units_more_than_its_lse_allows(step: int) -> None:
    """Of 2^-24, on Gaussian inputs; |lse| is at most 6. Every row, or every second."""
    q, k, v, _ = inputs("gaussian", "float32")
    out = ByLse.apply(q, k, v, {}, torch.float32)
    out[:, ::step] *= 1 + (20 + 6) * 2.0**-24
    refused("out is wrong", out, q, k, v, causal=True)


def test_a_row_without_a_key_has_no_rounding() -> None:
    """Its lse is -inf: its bounds are 0, those of other rows finite."""
    x, _ = drawn("gaussian", "float32")
    mask = torch.ones(1, 1, 96, 96, dtype=torch.bool)
    mask[..., 40, :] = False
    reference = attention(*x.tensors, mask=mask, **HOW)
    found = bounds(*x.tensors, reference, policy.loosest("float32"), mask=mask, **HOW)
    assert float(reference.lse[0, 0, 40]) == -math.inf
    for name in TENSORS:
        assert bool(found[name].variance.isfinite().all()), name
    assert float(found["out"].variance[:, 40].max()) < 1e-60
