"""A function that takes 16 bits alone, as flash kernels do, is asked what one of float64 is asked; atomic adds hide
nothing; sums in 16 bits are a fact and hide nothing."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.verdict.label import NONDETERMINISTIC, ROUNDING
from tests.measuring import only_grids
from tests.slow.foreign.functions import eager
from tests.strangers import heads_first, visible

SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 1, "head_dim": 16, "world_size": 1}
CALLS = itertools.count()


class AtomicAdds(torch.autograd.Function):
    """The identity, whose gradient differs from call to call by the last bit of some elements."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        bits = gradient.contiguous().view(torch.int16)
        return (bits ^ (torch.rand(bits.shape) < 0.01).to(torch.int16)).view(gradient.dtype)


def healthy(q, k, v, *, causal, softmax_scale):
    """Exact but for float32 products, in 16 bits alone."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise RuntimeError("only fp16 and bf16 are supported")
    return eager(AtomicAdds.apply(q), k, v, causal=causal, softmax_scale=softmax_scale)


def first_sequence(q, k, v, *, causal, softmax_scale):
    return healthy(q, k[:1].expand_as(k), v, causal=causal, softmax_scale=softmax_scale)


def one_call_in_100(q, k, v, *, causal, softmax_scale):
    out, lse = healthy(q, k, v, causal=causal, softmax_scale=softmax_scale)
    return (1.5 * out if next(CALLS) % 100 == 77 else out), lse


@pytest.mark.stress(1)
@pytest.mark.parametrize(("function", "tensors", "cause"), [
    (first_sequence, {"out", "dq", "dk", "dv"}, "k has the first batch item's values"),
    (one_call_in_100, {"out"}, ""),
])  # fmt: skip
def test_a_fault_is_found_beside_bits_that_change(
    function: Callable[..., object], tensors: set[str], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid with a second batch item shows a sequence's; a call of 100 needs all runs again."""
    if function is not one_call_in_100:
        monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids("shape_heads"))
    found = accuracy.diagnose(function, **SMALL)
    assert found.is_bug
    wrong = found.verdicts[found.verdicts["label"].isin(["logic", NONDETERMINISTIC])]
    assert {*wrong["tensor"]} >= tensors
    assert cause in found.sentence
    assert found.sentence.startswith("out")


def test_a_healthy_one_whose_bits_change_is_no_bug(few_grids: None) -> None:
    found = accuracy.diagnose(healthy, **SMALL)
    assert (found.label, found.is_bug) == (ROUNDING, False)
    assert "dq, whose sums are added in another order" in found.sentence
    found.raise_if_faulty()


class Divided(torch.autograd.Function):
    """x over a sum that is kept in 16 bits, added key by key, or over as much with one key left out."""

    @staticmethod
    def forward(ctx, p: Tensor, form: torch.dtype, lost: int) -> tuple[Tensor, Tensor]:
        total = torch.zeros(p.shape[:-1], dtype=form)
        for at in range(lost, p.shape[-1]):
            total = (total.to(p.dtype) + p[..., at]).to(form)
        total = total.to(p.dtype)[..., None]
        ctx.save_for_backward(p / total, total)
        return p / total, total[..., 0]

    @staticmethod
    def backward(ctx, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        weights, total = ctx.saved_tensors
        return (gradient - (gradient * weights).sum(-1, keepdim=True)) / total, None, None


def summed(q, k, v, causal, softmax_scale, lost=0):
    dtype, (q, k, v) = q.dtype, heads_first(q, k, v)
    scores = q @ k.mT * softmax_scale
    scores = visible(scores) if causal else scores
    top = scores.amax(-1, keepdim=True).detach()
    weights, total = Divided.apply((scores - top).exp(), dtype, lost)
    return (weights @ v).transpose(1, 2).to(dtype), top[..., 0] + total.log()


@pytest.mark.parametrize("few_grids", [("explain",)], indirect=True)
def test_a_sum_over_keys_in_16_bits_is_a_fact_with_a_size_and_one_without_a_key_is_a_bug(few_grids: None) -> None:
    def short(q, k, v, *, causal, softmax_scale):
        return summed(q, k, v, causal, softmax_scale)

    def lossy(q, k, v, *, causal, softmax_scale):
        return summed(q, k, v, causal, softmax_scale, lost=1 if k.shape[1] > 1 and not causal else 0)

    found = accuracy.diagnose(short, **SMALL | {"seqlen": 136}, dtype=["bfloat16", "float16"])
    assert (found.label, found.is_bug) == (ROUNDING, False), found.sentence
    assert {"out", "lse"} <= {*found.verdicts.loc[found.verdicts["x_floor"] > 2, "tensor"]}
    told = found.sentence.partition("the sum over keys is kept in 16 bits")[2].split(";")[0]
    assert told.count("136") == 1, found.sentence  # the one length, said once
    assert accuracy.diagnose(lossy, **SMALL, mask="full", dtype="bfloat16").is_bug


def test_dq_of_many_blocks_in_16_bits_is_a_fact_and_a_lost_or_shrunken_block_is_a_bug() -> None:
    """Autograd adds dq of 516 blocks of keys in bfloat16."""

    def in_blocks(q, k, v, causal, softmax_scale, lost=0, shrunk=1.0):
        dtype, query = q.dtype, q.transpose(1, 2)
        total, out = 0.0, 0.0
        for start in range(0, k.shape[1] - lost, 64):
            keys, values = (x[:, start : start + 64].transpose(1, 2).float() for x in (k, v))
            weights = (query.float() @ keys.mT * softmax_scale).exp()
            total, out = total * shrunk + weights.sum(-1, keepdim=True), out * shrunk + weights @ values
        return (out / total).transpose(1, 2).to(dtype)

    planted = {"lost": {"lost": 64}, "shrunk": {"shrunk": 0.999}, "factor": {}, "healthy": {}}
    functions = {name: partial(in_blocks, **how) for name, how in planted.items()}
    functions["factor"] = lambda q, k, v, causal, softmax_scale: in_blocks(q, k, v, causal, 1.01 * softmax_scale)
    few = {"seqlen": 33024, "seqlen_q": 16, "mask": "full", "heads": 2, "heads_kv": 1, "head_dim": 32}
    rows = accuracy.measure(functions, **few, dtype="bfloat16", world_size=1, seed=0, device="cpu")
    found = {name: accuracy.diagnose(each) for name, each in rows.groupby("variant")}
    assert {name: each.is_bug for name, each in found.items()} == {name: name != "healthy" for name in planted}
    dq = found["healthy"].verdicts.set_index("tensor").loc["dq"]
    assert dq["finding"] == "kept_sum"
