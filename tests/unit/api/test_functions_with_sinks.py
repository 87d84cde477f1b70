"""A function of one's own with attention sinks, measured on one rank."""

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.verdict.label import BUGS

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32, "sinks": 0.5}
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, s_aux: Tensor) -> Tensor:
    """As a stranger writes it: no lse."""
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (x.repeat_interleave(q.shape[2] // k.shape[2], 2).to(wide) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), keys) * softmax_scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(scores.shape[-1] - scores.shape[-2])
    scores = scores.masked_fill(~seen, -torch.inf) if causal else scores
    scores = torch.cat([scores, s_aux[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., :-1], values).to(q.dtype)


def detached(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, s_aux: Tensor) -> Tensor:
    """The planted fault: a sink without a gradient."""
    return attention(q, k, v, causal=causal, softmax_scale=softmax_scale, s_aux=s_aux.detach())


def other_heads(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, s_aux: Tensor) -> Tensor:
    return attention(q, k, v, causal=causal, softmax_scale=softmax_scale, s_aux=s_aux.roll(1))


def without(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    return q


@pytest.mark.parametrize("device", DEVICES)
def test_sinks_and_their_gradient_are_measured(device: str) -> None:
    rows = accuracy.measure(attention, dtype=["float64", "float16"], device=device, progress=False, **SMALL)
    found = rows[(rows["rank"] == -1) & (rows["status"] == "ok")].set_index(["dtype", "tensor"])["error_rel"]
    assert set(found["float64"].index) == {"out", "dq", "dk", "dv", "dsink", "delta"}
    assert found["float64"].max() < 1e-12
    accuracy.assert_accurate(attention, device=device, **SMALL)
    for wrong, tensor in ((detached, "dsink is"), (other_heads, "out")):
        with pytest.raises(AssertionError, match=tensor):
            accuracy.assert_accurate(wrong, device=device, **SMALL)


def test_a_gradient_of_few_sinks_may_have_the_walk_of_its_sums() -> None:
    """Eager's is nearer by luck; one of other heads is not near."""
    how = SMALL | {"seqlen": 128, "dtype": "float32", "device": "cpu", "mask": "causal"}
    for seed in range(3):
        accuracy.assert_accurate(attention, seed=seed, **how)
        with pytest.raises(AssertionError, match="dsink is"):
            accuracy.assert_accurate(detached, seed=seed, **how)


def test_a_diagnosis_knows_a_sink_without_a_gradient(few_grids: None) -> None:
    how = {"dtype": "bfloat16", "device": "cpu", "progress": False, **SMALL}
    found = accuracy.diagnose({"mine": attention, "theirs": detached}, **how)
    wrong = found.verdicts[found.verdicts["label"].isin(BUGS)]
    assert {*zip(wrong["variant"], wrong["tensor"], strict=True)} == {("theirs", "dsink")}


def test_a_function_without_the_word_is_refused_in_a_line() -> None:
    with pytest.raises(accuracy.ConfigError, match="has no attention sinks") as error:
        accuracy.measure(without, device="cpu", progress=False, **SMALL)
    assert "\n" not in str(error.value)


def test_a_function_that_needs_sinks_says_so_where_none_are_given() -> None:
    with pytest.raises(accuracy.ConfigError, match="give sinks="):
        accuracy.measure(attention, device="cpu", progress=False, **{**SMALL, "sinks": None})
