"""`assert_close`: strangers' healthy attention passes on any inputs, a small fault of one tensor does not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from tests.bound.test_bounds import ALIKE, ORDINARY, drawn
from tests.processes import python

SHORT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-18}


def hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)


def wide(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[2], 2)


def float32_inside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = (wide(x, q.shape[2]).float() for x in (k, v))
    scores = hidden(torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * q.shape[-1] ** -0.5)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).to(q.dtype), scores.logsumexp(-1)


def other_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys from the last to the first."""
    k, v = (wide(x, q.shape[2]).float() for x in (k, v))
    scores = hidden(torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * q.shape[-1] ** -0.5).flip(-1)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (torch.einsum("bhqk,bkhd->bqhd", weights, v.flip(1)) / weights.sum(-1).mT[..., None]).to(q.dtype)


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (wide(x, q.shape[2]) for x in (k, v))
    scores = hidden(torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def sdpa(backend: SDPBackend) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (wide(x, q.shape[2]).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attend


HEALTHY = {
    "float32_inside": float32_inside, "other_order": other_order, "in_its_own_dtype": in_its_own_dtype,
    "sdpa_math": sdpa(SDPBackend.MATH), "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
}  # fmt: skip
FAULTS = {
    "zeros": torch.zeros_like,
    "shifted": lambda x: x.roll(1, 1),
    "factor": lambda x: x * 1.01,
    "least_factor": lambda x: x * (1 + 2 * SHORT[x.dtype]),
}


@pytest.mark.stress(16, "fn", "inputs", "dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("inputs", ORDINARY + ALIKE)
@pytest.mark.parametrize("fn", HEALTHY)
def test_strangers_healthy_attention_passes(fn: str, inputs: str, dtype: str) -> None:
    x, _ = drawn(inputs, dtype)
    accuracy.assert_close(HEALTHY[fn], x.q, x.k, x.v, dout=x.dout, causal=True)


def returned(dtype: str) -> tuple[Any, dict[str, Tensor]]:
    x, _ = drawn("gaussian", dtype)
    leaves = [each.clone().requires_grad_() for each in (x.q, x.k, x.v)]
    out, lse = float32_inside(*leaves)
    gradients = torch.autograd.grad(out, leaves, x.dout)
    return x, dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), lse.detach(), *gradients), strict=True))


@pytest.mark.stress(16, "tensor", "fault", "dtype")
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_fault_of_one_tensor_is_named(dtype: str, fault: str, tensor: str) -> None:
    x, found = returned(dtype)
    found[tensor] = FAULTS[fault](found[tensor])
    with pytest.raises(AssertionError, match=rf"^{tensor} is wrong: .* times\); batch 0, token \d+") as caught:
        accuracy.assert_close(found.pop("out"), x.q, x.k, x.v, dout=x.dout, causal=True, **found)
    assert f"stored in {dtype}; beyond them by chance: 1e-06 a tensor" in str(caught.value)
    assert str(caught.value).count("is wrong") == 1


def test_what_is_not_finite_and_what_has_another_shape_fails() -> None:
    x, found = returned("float32")
    found["out"][0, 5, 1, 2] = math.nan
    with pytest.raises(AssertionError, match=r"it is not finite .* batch 0, token 5, head 1, dim 2"):
        accuracy.assert_close(found["out"], x.q, x.k, x.v, causal=True)
    with pytest.raises(AssertionError, match="out has the shape"):
        accuracy.assert_close(found["out"][:, 1:], x.q, x.k, x.v, causal=True)
    with pytest.raises(AssertionError, match="out came as float32, expected bfloat16"):
        accuracy.assert_close(found["out"], x.q.bfloat16(), x.k.bfloat16(), x.v.bfloat16(), causal=True)
    q = x.q.clone()
    q[0, 5, 1, 2] = math.nan  # no fault of the function
    with pytest.raises(accuracy.ConfigError, match="q has 1 value not finite"):
        accuracy.assert_close(found["out"], q, x.k, x.v, causal=True)


def test_heads_may_come_before_tokens_and_are_told_with_the_failure_where_it_is_not_said() -> None:
    x, found = returned("bfloat16")
    q, k, v, dout, out, dq = (each.transpose(1, 2) for each in (*x.tensors, found["out"], found["dq"]))
    errors = accuracy.assert_close(out, q, k, v, dout=dout, dq=dq, lse=found["lse"], causal=True, layout="bhsd")
    assert set(errors) == {"out", "lse", "dq"}
    assert 0 < errors["dq"] < 2**-8
    with pytest.raises(AssertionError, match=r"of \(B, H, S, D\) say layout='bhsd'"):
        accuracy.assert_close(out, q, k, v)


MISTAKES: dict[str, dict[str, Any]] = {
    "layout 'hsd' is unknown": {"layout": "hsd"}, "policy 'loose' is unknown": {"policy": "loose"},
    "gradients need dout": {"dq": torch.zeros(1)}, "NoneType is no out": {"actual": None},
    "does not fit q": {"k": torch.zeros(1, 96, 3, 32)},
    "give one dtype of": {"v": torch.zeros(1, 96, 2, 32, dtype=torch.int32)},
    "q is a str, expected a tensor": {"q": "q"},
}  # fmt: skip


def test_mistakes_are_one_line() -> None:
    x, found = returned("float32")
    for message, change in MISTAKES.items():
        arguments = {"actual": found["out"], "q": x.q, "k": x.k, "v": x.v, "causal": True} | change
        with pytest.raises(accuracy.ConfigError, match=message) as caught:
            accuracy.assert_close(**arguments)
        assert "\n" not in str(caught.value)


def test_it_needs_torch_alone() -> None:
    code = (
        "import sys, torch, accuracy; x = torch.randn(1, 8, 2, 4);"
        "f = torch.nn.functional.scaled_dot_product_attention;"
        "accuracy.assert_close(f, x, x, x, layout='bhsd');"
        "print({'pandas', 'hydra', 'pyarrow', 'matplotlib'} & set(sys.modules))"
    )
    assert python("-c", code).stdout == "set()\n"


def of_assert_accurate(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: None) -> Tensor:
    k, v = (wide(x, q.shape[2]) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    return torch.einsum("bhqk,bkhd->bqhd", (hidden(scores) if causal else scores).softmax(-1), v)


def of_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float | None = None, is_causal: bool = False
) -> Tensor:
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    return of_assert_accurate(q, k, v, causal=is_causal, softmax_scale=scale, group=None)


def test_a_function_is_called_with_the_mask_and_scale_that_it_has_parameters_for() -> None:
    q, k, v = (torch.randn(1, 24, 2, 8, generator=torch.Generator().manual_seed(x)) for x in range(3))
    for function in (of_assert_accurate, of_flash_attention):
        for how in ({}, {"causal": True}, {"causal": True, "softmax_scale": 0.3}):
            accuracy.assert_close(function, q, k, v, dout=q, **how)


def test_switches_of_the_process_are_the_function_s_and_stay() -> None:
    """A process that allows TF32 is measured by exact references, and finds its switch as it was."""
    q, k, v, dout = torch.randn(4, 1, 16, 2, 8, generator=torch.Generator().manual_seed(1)).unbind()
    torch.backends.cuda.matmul.allow_tf32 = True
    accuracy.assert_close(in_its_own_dtype, q, k, v, dout=dout, causal=True)
    assert torch.backends.cuda.matmul.allow_tf32


def test_a_value_that_cannot_be_is_refused_before_the_function_is_called() -> None:
    def never(q, k, v):
        raise AssertionError("called")

    q, k, v = (torch.randn(1, 8, heads, 16) for heads in (4, 2, 2))
    wrong = {
        "causal": ("full", [True], 1), "softmax_scale": ("0.1", 0, float("nan"), [0.1]), "softcap": (-1, 0.0, "x"),
        "window": ("a", -1, (3, 0), 1.5), "pieces": (0, 1.5, "2", True), "documents": ([5, 5], [8.0], [8, 0]),
        "sinks": ([1.0],), "policy": ("loose",), "layout": ("bhds",),
    }  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(accuracy.ConfigError, match=name):
                accuracy.assert_close(never, q, k, v, **{name: value})
    for given in ({"dout": q[:, :4]}, {"dout": q.double()}, {"dout": q, "dq": q}):
        with pytest.raises(accuracy.ConfigError):
            accuracy.assert_close(never, q, k, v, **given)
    with pytest.raises(accuracy.ConfigError, match="does not fit k"):
        accuracy.assert_close(never, q, k, v[:, :4])
    with pytest.raises(accuracy.ConfigError, match="dq="):
        accuracy.assert_close(q, q, k, v, dout=q)
    with pytest.raises(accuracy.ConfigError, match="between 0 and 1"):
        accuracy.bounds(q, k, v)["out"].likely(2)


def test_a_function_that_writes_to_its_inputs_fails() -> None:
    q, k, v = (torch.randn(1, 8, 2, 16) for _ in range(3))
    with pytest.raises(AssertionError, match="wrote to its inputs q"):
        accuracy.assert_close(lambda q, k, v: q.mul_(0.25), q, k, v)
