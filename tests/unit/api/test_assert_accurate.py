from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from accuracy import assert_accurate
from accuracy.verdict.rule import factor
from tests.contract.variant.somebody import without_lse
from tests.strangers import attend, inaccurate, wider

pytestmark = pytest.mark.xdist_group("measure")
SMALL = {"seqlen": 128, "heads": 4, "heads_kv": 2, "head_dim": 16, "world_size": 1}  # none shares its work
ROOT = Path(__file__).parents[3]


def attention(q, k, v, *, causal, softmax_scale, group):
    return attend(q, k, v, causal=causal, scale=softmax_scale)[0]


def scaled(tensor, factor):
    """Attention whose out, dq, dk or dv is a factor times what it should be, before it is rounded."""

    def fn(q, k, v, **how):
        wide = {name: x.to(wider(q.dtype)) for name, x in zip("qkv", (q, k, v), strict=True)}
        if tensor != "out":
            x = wide[tensor[1]]
            wide[tensor[1]] = x + (factor - 1) * (x - x.detach())
        out = attention(*wide.values(), **how)
        return (out + (factor - 1) * out.detach() * (tensor == "out")).to(q.dtype)

    return fn


def test_torch_s_attention_passes_alone_in_every_dtype_with_the_switches_of_the_process() -> None:
    seen = []

    def watching(q, k, v, **how):
        seen.append(torch.backends.cudnn.allow_tf32)
        return attention(q, k, v, **how)

    torch.backends.cudnn.allow_tf32 = True
    rows = assert_accurate(watching, dtype=[torch.bfloat16, "float16", "float32", "float64"], **SMALL)
    assert ({*seen}, torch.backends.cudnn.allow_tf32) == ({True}, True)
    found = rows[rows["status"] == "ok"].groupby("dtype")["tensor"].agg(set)
    assert list(found) == [{"out", "dq", "dk", "dv", "delta"}] * 4


@pytest.mark.stress(4, "tensor", "factor")
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("bfloat16", 1 + 2**-10), ("float16", 1 + 2**-13), ("float32", 1 + 2**-20)],
)
def test_a_factor_is_found_that_a_ratio_of_errors_does_not_show(tensor: str, dtype: str, factor: float) -> None:
    inaccurate(f"{tensor}.* (times the reference|times as far)", scaled(tensor, factor), dtype=dtype, world_size=1)


def test_a_tiny_healthy_problem_is_not_taken_for_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """dk of two tokens of one head: a standard error of two numbers that agree by chance is no measure."""
    tiny = {"seqlen": 2, "heads": 2, "heads_kv": 1, "head_dim": 8, "kernel": "eager", "seed": [*range(6)]}
    assert_accurate(attention, world_size=1, **tiny)
    monkeypatch.setattr(factor, "FEWEST_ROWS", 0)
    inaccurate(r"dk.* times the reference", attention, world_size=1, **tiny)


def torch_s_own(q, k, v, *, softmax_scale, causal=False, attn_mask=None, dk=1.0):
    how = {"is_causal": causal, "scale": softmax_scale, "enable_gqa": True, "attn_mask": attn_mask}
    first = (x.transpose(1, 2) for x in (q, dk * k - (dk - 1) * k.detach(), v))
    return scaled_dot_product_attention(*first, **how).transpose(1, 2)


@pytest.mark.stress(1)
@pytest.mark.parametrize("masked", [False, True])
def test_sums_of_gradients_in_16_bits_are_no_yardstick_but_for_torch_s_own(masked: bool) -> None:
    seen = (torch.rand(256, 256, generator=torch.Generator().manual_seed(0)) > 0.5).logical_or_(torch.eye(256).bool())
    few = {"heads": 4, "heads_kv": 1, "head_dim": 32, "world_size": 1, "device": "cpu"}
    few |= {"attn_mask": seen} if masked else {}
    with pytest.warns(UserWarning, match="torch's own CPU kernel"):
        assert_accurate(torch_s_own, **few)
    refused = r"as eager run once(.|\n)*dk and dv in 16 bits; kernel='torch_flash'"
    inaccurate(refused, torch_s_own, kernel="eager", **few)
    inaccurate(r"dk is(.|\n)*" + refused, partial(torch_s_own, dk=1.03), **few)


def torch_s_own_alone(q, k, v, *, causal, softmax_scale, group, dv=1.0):
    """On several ranks with other bits, in float32."""
    if dist.get_world_size(group) == 1:
        return torch_s_own(q, k, v, causal=causal, softmax_scale=softmax_scale)
    wide = (x.float() for x in (q, k, dv * v - (dv - 1) * v.detach()))
    return without_lse(*wide, causal=causal, softmax_scale=softmax_scale, group=group).to(q.dtype)


def test_torch_s_own_sums_of_one_rank_are_no_fault_of_several() -> None:
    few = {"seqlen": 256, "heads": 4, "heads_kv": 1, "head_dim": 32, "world_size": [1, 2], "device": "cpu"}
    with pytest.warns(UserWarning, match="torch's own CPU kernel"):
        assert_accurate(torch_s_own_alone, **few)
    inaccurate(r"dv is", partial(torch_s_own_alone, dv=1.03), **few | {"world_size": 2})


SHORT = {"heads": 4, "heads_kv": 2, "seqlen": 256, "batch": 2, "world_size": 1, "device": "cpu"}


def uneven(k):
    """What makes 1.5% of dk an error: six times that of sums in float32, and less than one of all in bfloat16."""
    return 1 + 0.015 * (-1.0) ** torch.arange(k.shape[-3], device=k.device).to(k.dtype)[:, None, None]


def in_16_bits(q, k, v, *, causal, softmax_scale, fault="", sums=True):
    """Scores, weights and, unless torch's softmax has them, sums are rounded to the dtype of q."""
    own = torch.ones(q.shape[1], 1, 1, dtype=q.dtype).index_fill(0, torch.tensor(99), 0.0 if fault == "token" else 1.0)
    own = own * (uneven(own) if fault == "uneven" else 1.004 if fault == "dk" else 1.0)
    k = k.detach() + (k - k.detach()) * own
    k = torch.cat([k[:1], torch.cat([k[1:, :-4], k[:1, -4:]], 1)]) if fault == "leak" else k
    q, k, v = (x.transpose(1, 2).repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (q, k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    hidden = (j > i) & causal
    if fault == "block":
        hidden = hidden | ((i >= 200) & (i < 232) & (j >= 64) & (j < 96))
    s = (q @ k.mT * softmax_scale).masked_fill(hidden, -torch.inf)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    out = (e @ v) / e.sum(-1, keepdim=True) if sums else s.softmax(-1) @ v
    return (out * (1.01 if fault == "out" else 1.0)).transpose(1, 2)


@pytest.mark.stress(1)
@pytest.mark.parametrize("sums", [False, True])
def test_scores_and_sums_in_16_bits_are_told_and_not_refused(sums: bool) -> None:
    fn = partial(in_16_bits, sums=sums)
    with pytest.warns(UserWarning, match="kept in 16 bits"):
        rows = assert_accurate(fn, dtype=["bfloat16", "float16"], **SHORT)
    assert ({*rows["dtype"]}, {*rows["kernel"]}) == ({"bfloat16", "float16"}, {"eager"})
    for refusing in ({"kernel": "eager"}, {"arithmetic": "float32"}):
        inaccurate("times as far", fn, **SHORT | refusing)


@pytest.mark.stress(2)
@pytest.mark.parametrize("fault", ["token", "block", "dk", "out", "leak", "uneven"])
def test_faults_are_found_beside_sums_in_16_bits(fault: str) -> None:
    """A token of dk, 32 keys for 32 queries, factors, 4 keys of another batch; what rounding to 16 bits hides, float32
    shows."""
    inaccurate("times as far", partial(in_16_bits, fault=fault), **SHORT)


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k):
        return k.clone()

    @staticmethod
    def backward(ctx, dk):
        return dk if dk.dtype == torch.float32 else dk * uneven(dk)


@pytest.mark.stress(1)
@pytest.mark.parametrize("own_backward", [False, True])
def test_what_may_run_other_operators_in_float32_is_not_taken_for_rounding(own_backward: bool) -> None:
    def fn(q, k, v, *, causal, softmax_scale):
        if own_backward:
            k = OwnBackward.apply(k)
        elif k.dtype != torch.float32:
            k = torch.lerp(k.detach(), k, uneven(k).expand_as(k))
        return in_16_bits(q, k, v, causal=causal, softmax_scale=softmax_scale)

    inaccurate("times as far", fn, **SHORT)


def dropped_key(q, k, v, **how):
    mask = (torch.arange(k.shape[1]) != 5)[:, None, None]
    return attention(q, k * mask, v * mask, **how)


def not_a_number(q, k, v, **how):
    return attention(q, k, v, **how) * torch.where(torch.arange(q.shape[1]) == 7, torch.nan, 1.0)[:, None, None]


def future_seen(q, k, v, *, causal, **how):
    return attention(q, k, v, causal=False, **how)


def one_element(q, k, v, **how):
    shift = torch.zeros_like(q)
    shift[0, 77, 3, 11] = 0.5
    return attention(q, k, v, **how) + shift


BROKEN = {
    dropped_key: r"is .* times as far .*allowed: 1.5., on rank 0 .* times .3.(.|\n)*also over the limit: ",
    not_a_number: "non-finite values in out",
    future_seen: "times as far",
    one_element: "largest error 0.5 on rank 0, at batch 0, token 77, head 3, dim 11$",
}


def test_a_broken_one_fails_and_says_where() -> None:
    for fn, words in BROKEN.items():
        said = inaccurate(words, fn, dtype="float32", **SMALL)
        assert fn.__name__ in said


def test_a_variant_s_name_is_taken_and_sums_in_16_bits_are_found() -> None:
    shape = {key: value for key, value in SMALL.items() if key != "world_size"}
    sizes = assert_accurate("zigzag", kernel="eager", **shape)["world_size"]
    assert {*sizes} == {1, 2, 4}  # 3 ranks cannot share 128 tokens
    inaccurate("te_p2p", "te_p2p", kernel="eager", **shape, world_size=8)


def test_the_readme_s_example_runs_as_it_stands(pytester: pytest.Pytester) -> None:
    text = (ROOT / "README.md").read_text()
    blocks = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    block = next(each for each in blocks if "assert_accurate" in each)
    package = "from tests.strangers import attention as my_attention"
    pytester.makepyfile(my_package=package, test_my_attention=block)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_compiled_code_that_is_wrong_in_16_bits_is_refused_though_its_source_is_right() -> None:
    def attend(q, k, v, *, causal, softmax_scale):
        return in_16_bits(q, k, v, causal=causal, softmax_scale=softmax_scale, sums=False)

    def wrong_in_bfloat16(graph: Any, example: Any) -> Any:
        low = any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for x in example)
        return (lambda *given: tuple(1.1 * x for x in graph.forward(*given))) if low else graph.forward

    with pytest.warns(UserWarning, match="16 bits"):
        assert_accurate(attend, **SHORT)
    with pytest.raises(AssertionError):
        assert_accurate(torch.compile(attend, backend=wrong_in_bfloat16), **SHORT)
