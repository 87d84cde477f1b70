"""`assert_close`: strangers' healthy attention passes on any inputs, a small fault of one tensor does not."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.runtime.sharding import token_map
from tests.slow.foreign.functions import eager
from tests.strangers import DTYPES, HEADS, attend, refused, tensors, visible, wider
from tests.unit.bound.test_bounds import ALIKE, ORDINARY, drawn

SHORT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-18}


def float32_inside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return eager(q, k, v, causal=True, softmax_scale=q.shape[-1] ** -0.5, group=None)


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor, sm_scale: float | None = None, is_causal: bool = True) -> Tensor:
    """With flash-attn's names for the mask and the scale."""
    return attend(q, k, v, causal=is_causal, scale=sm_scale, wide=q.dtype)[0]


FAULTS = {
    "zeros": torch.zeros_like, "shifted": lambda x: x.roll(1, 1), "factor": lambda x: x * 1.01,
    "least_factor": lambda x: x * (1 + 2 * SHORT[x.dtype]),
}  # fmt: skip


@pytest.mark.stress(14, "inputs", "dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("inputs", ORDINARY + ALIKE)
def test_attention_that_rounds_everything_to_its_own_dtype_passes(inputs: str, dtype: str) -> None:
    """What rounds less is within the bounds of `tests/unit/bound`."""
    x, _ = drawn(inputs, dtype)
    accuracy.assert_close(in_its_own_dtype, x.q, x.k, x.v, dout=x.dout, causal=True)


def returned(dtype: str) -> tuple[Any, dict[str, Tensor]]:
    x, _ = drawn("gaussian", dtype)
    leaves = [each.clone().requires_grad_() for each in (x.q, x.k, x.v)]
    out, lse = float32_inside(*leaves)
    gradients = torch.autograd.grad(out, leaves, x.dout)
    return x, dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), lse.detach(), *gradients), strict=True))


@pytest.mark.stress(8, "tensor", "fault", "dtype")
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_fault_of_one_tensor_is_named(dtype: str, fault: str, tensor: str) -> None:
    x, found = returned(dtype)
    found[tensor] = FAULTS[fault](found[tensor])
    says = rf"^{tensor} is wrong: .* times\); batch 0, token \d+"
    said = refused(says, found.pop("out"), x.q, x.k, x.v, dout=x.dout, causal=True, **found)
    assert f"stored in {dtype}; beyond them by chance: 1e-06 a tensor" in said
    assert said.count("is wrong") == 1


def test_what_is_not_finite_fails_and_says_where_and_an_lse_in_base_2_is_named() -> None:
    x, found = returned("float32")
    refused("lse is in base 2", (found["out"], found["lse"] / math.log(2)), x.q, x.k, x.v, causal=True)
    found["out"][0, 5, 1, 2] = math.nan
    refused(r"it is not finite .* batch 0, token 5, head 1, dim 2", found["out"], x.q, x.k, x.v, causal=True)


def test_heads_may_come_before_tokens_and_are_told_with_the_failure_where_it_is_not_said() -> None:
    x, found = returned("bfloat16")
    q, k, v, dout, out, dq = (each.transpose(1, 2) for each in (*x.tensors, found["out"], found["dq"]))
    errors = accuracy.assert_close(out, q, k, v, dout=dout, dq=dq, lse=found["lse"], causal=True, layout="bhsd")
    assert set(errors) == {"out", "lse", "dq"}
    assert 0 < errors["dq"] < 2**-8
    refused(r"of \(B, H, S, D\) say layout='bhsd'", out, q, k, v)


def test_a_function_is_given_the_mask_and_scale_and_the_process_s_switches_which_stay() -> None:
    """A process that allows TF32 is measured by exact references, and finds its switch as it was."""
    q, k, v = (torch.randn(1, 24, 2, 8, generator=torch.Generator().manual_seed(x)) for x in range(3))
    torch.backends.cuda.matmul.allow_tf32 = True
    for how in ({"causal": False}, {"causal": True}, {"causal": True, "softmax_scale": 0.3}):
        accuracy.assert_close(in_its_own_dtype, q, k, v, dout=q, **how)
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("factor", [0.9995, 0.998, 1.0005])
def test_a_factor_as_large_as_cut_operands_make_is_no_tf32(factor: float) -> None:
    """Operands that are cut off make out smaller, too; lse, which is right, is not accused in its place."""
    x, found = returned("float32")
    refused(r"\Aout is wrong.*\n(?!lse)", factor * found["out"], x.q, x.k, x.v, causal=True, lse=found["lse"])
    refused(r"\Aout is wrong", factor * found["out"], x.q, x.k, x.v, causal=True)


def test_zeros_and_a_result_on_one_of_several_ranks_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 1, 64, 2, 16)
    assert "rows=" not in refused("zero everywhere", torch.zeros_like(q), q, k, v)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    refused(r"3 ranks: .* rows=", q, q, k, v)


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
def test_a_rank_compares_its_own_rows_alone(sharding: str) -> None:
    """dk and dv of its tokens have what every rank's queries add; a fault is told with the token of the sequence."""
    q, k, v, dout = tensors("bfloat16", 48, 48, batch=1)
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    out, lse = float32_inside(*leaves)
    gradients = torch.autograd.grad(out, leaves, dout)
    for rank, rows in enumerate(token_map(sharding, 48, 4)):
        mine = out[:, rows].detach()
        named = dict(zip(("dq", "dk", "dv"), (each[:, rows] for each in gradients), strict=True))
        whole = {"dout": dout, "causal": True, "lse": lse[:, :, rows].detach(), "rows": rows}
        assert set(accuracy.assert_close(mine, q, k, v, **named, **whole)) == {"out", "lse", "dq", "dk", "dv"}
        named["dk"] = named["dk"].index_fill(1, torch.tensor([3]), 4.0)
        refused(rf"\Adk is wrong.*token {int(rows[3])},", mine, q, k, v, **named, **whole)
        if rank:
            refused("out is wrong", mine, q, k, v, causal=True, rows=list(range(12)))


class Auxiliary(NamedTuple):
    """What flex_attention returns beside out: its lse and its largest scores, each None where it was not asked for."""

    lse: Tensor | None
    max_scores: Tensor | None


def largest(q: Tensor, k: Tensor, wide: torch.dtype, bias: Tensor, dims: int) -> list[Tensor]:
    """The largest scores of rows, items or all: right, and of the mistakes 'no mask', 'no cap' and 'no scale'."""
    raw = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k.repeat_interleave(HEADS // 2, 2).to(wide))
    scores = 5 * torch.tanh(raw * 0.25 / 5) + bias
    return [x.amax({1: (0, 2, 3), 2: (2, 3), 3: 3}[dims]) for x in (visible(scores), scores, raw, raw * 0.25)]


@pytest.mark.stress(4, "dims", "dtype")
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
        most, *wrong = largest(q, k, wide, bias, dims)
        ways = [(out, lse, most), (out, None, most), (out, Auxiliary(lse, most))]
        ways += [(out, most)] if dims == 1 else []
        for each in ways:
            found = accuracy.assert_close(each, q, k, v, **how)
            assert "max_logit" in found
            assert dtype != "float64" or found["max_logit"] < 1e-12
        accuracy.assert_close(out, q, k, v, max_logit=most.to(q.dtype), **how)
        for fault in wrong if dims == 3 else wrong[1:]:  # the largest of all may be seen without a mask, too
            refused("max_logit is wrong", (out, lse, fault), q, k, v, **how)


def test_another_shape_is_refused_and_flash_attn_s_third_value_is_no_largest_score() -> None:
    q, k, v, _ = tensors()
    out, lse = attend(q, k, v)
    refused("max_logit has the shape", (out, lse, lse[:, :, :3]), q, k, v)
    for weights in (torch.zeros(2, 4, 40, 56), torch.empty(0), torch.zeros(2, dtype=torch.int64)):
        assert set(accuracy.assert_close((out, lse, weights), q, k, v)) == {"out", "lse"}
