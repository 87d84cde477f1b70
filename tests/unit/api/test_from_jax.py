"""`accuracy.from_jax`: functions of JAX arrays. Where JAX is not installed a stand-in of torch's own is used.

The function is written in operators that torch's tensors and JAX's arrays share; what is JAX's own is in the tests that
are skipped without it.
"""

import importlib.util
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from tests.strangers import inaccurate, refused

SMALL = {"seqlen": 64, "heads": 2, "heads_kv": 2, "head_dim": 16, "mask": "full", "device": "cpu"}
INSTALLED = importlib.util.find_spec("jax") is not None


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX, or what of it `from_jax` calls."""
    if INSTALLED:
        return

    def flatten(result: Any) -> tuple[list[Tensor], int]:
        leaves = [result] if isinstance(result, Tensor) else list(result)
        return leaves, len(leaves)

    def vjp(fn: Callable[..., Any], *arrays: Tensor) -> tuple[Any, Callable[..., Any]]:
        with torch.enable_grad():
            found, pull = torch.func.vjp(fn, *arrays)
        if not all(each.is_floating_point() for each in found):
            raise ValueError("such a function knows no reverse-mode")
        return found, pull

    module = ModuleType("jax")
    module.__spec__ = ModuleSpec("jax", None)
    content = {
        "dlpack": SimpleNamespace(from_dlpack=torch.Tensor.detach), "block_until_ready": lambda arrays: arrays,
        "vjp": vjp, "enable_x64": lambda on: nullcontext(),
        "tree": SimpleNamespace(flatten=flatten, unflatten=lambda size, leaves: leaves if size > 1 else leaves[0]),
    }  # fmt: skip
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, "jax", module)


def of_bias(q: Any, k: Any, v: Any, *, softmax_scale: float, mask: Any = 0.0, bias: Any = 0.0) -> Any:
    """(B, S, H, D) of as many heads of keys, mask full; a boolean mask comes as `mask`, what is added as `bias`."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    weights = math.e ** (q @ k.mT * softmax_scale + bias) * (1 if isinstance(mask, float) else mask)
    return (weights @ v / weights.sum(-1)[..., None]).swapaxes(1, 2)


def out_alone(q: Any, k: Any, v: Any, *, softmax_scale: float) -> Any:
    return of_bias(q, k, v, softmax_scale=softmax_scale)


def wrong(q: Any, k: Any, v: Any, *, softmax_scale: float) -> Any:
    """The planted fault: v and its gradient a hundredth too large."""
    return of_bias(q, k, v, softmax_scale=softmax_scale) * 1.01


def tensors(dtype: torch.dtype, heads_kv: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 40, heads, 16, generator=generator).to(dtype) for heads in (2, heads_kv, heads_kv, 2)]


def test_a_function_agrees_with_float64_and_a_wrong_one_does_not(jax: None) -> None:
    q, k, v, dout = tensors(torch.float64)
    found = accuracy.assert_close(accuracy.from_jax(out_alone), q, k, v, dout=dout)
    assert set(found) == {"out", "dq", "dk", "dv"}
    assert max(found.values()) < 1e-12
    refused("out is wrong", accuracy.from_jax(wrong), q, k, v, dout=dout)


def test_words_and_their_gradients_go_through(jax: None) -> None:
    """A boolean mask goes to `mask` and a bias to `bias` where a function has both, as JAX's own."""
    q, k, v, dout = tensors(torch.float64)
    bias = torch.randn(2, 40, 40, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    for mask, more in ((bias, {"dbias"}), (seen, set())):
        how = {"dout": dout, "attn_mask": mask, "softmax_scale": 0.2}
        found = accuracy.assert_close(accuracy.from_jax(of_bias), q, k, v, **how)
        assert set(found) == {"out", "dq", "dk", "dv"} | more
        assert max(found.values()) < 1e-12

    def transposed(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, softmax_scale: float) -> Any:
        return accuracy.from_jax(of_bias)(q, k, v, mask=mask.mT.contiguous(), softmax_scale=softmax_scale)

    refused("out is wrong", transposed, q, k, v, attn_mask=seen)


def test_it_is_measured_as_any_other_on_one_rank(jax: None, few_grids: None) -> None:
    rows = accuracy.measure(accuracy.from_jax(out_alone), dtype="float32", progress=False, **SMALL)
    assert set(rows.loc[rows["status"] == "ok", "tensor"]) >= {"out", "dq", "dk", "dv"}
    accuracy.assert_accurate(accuracy.from_jax(out_alone), dtype="float32", **SMALL)
    inaccurate("out is", accuracy.from_jax(wrong), dtype="float32", **SMALL)
    rows = accuracy.drift(accuracy.from_jax(out_alone), "single_device", dtype="float32", progress=False, **SMALL)
    assert {"equal", "within", ""} >= set(rows["label"])


def test_of_a_function_that_cannot_be_differentiated_the_forward_is_measured(jax: None) -> None:
    fn = accuracy.from_jax(not_differentiable)
    rows = accuracy.measure(fn, dtype="float32", progress=False, **SMALL)
    assert set(rows.loc[rows["status"] == "ok", "tensor"]) == {"out", "delta"}


def not_differentiable(q: Any, k: Any, v: Any, *, softmax_scale: float) -> Any:
    if not isinstance(q, Tensor):
        import jax

        q = jax.pure_callback(lambda x: x, q, q)
    elif torch._C._functorch.is_gradtrackingtensor(q):
        raise ValueError("reverse-mode is not known")
    return of_bias(q, k, v, softmax_scale=softmax_scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_of_jax_itself_passes(dtype: torch.dtype) -> None:
    """As a stranger has it: no lse, grouped heads, a mask or a bias by its words. XLA has no float16 on a CPU."""
    module = pytest.importorskip("jax")
    fn = accuracy.from_jax(module.jit(module.nn.dot_product_attention, static_argnames=("is_causal", "scale")))
    q, k, v, dout = tensors(dtype, 1)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    bias = torch.randn(2, 40, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for how in ({"causal": True}, {}, {"attn_mask": seen}, {"attn_mask": bias}):
        assert {"out", "dq", "dk", "dv"} <= set(accuracy.assert_close(fn, q, k, v, dout=dout, **how))
    refused("out is wrong", lambda *given, attn_mask: fn(*given, mask=attn_mask.mT), q, k, v, attn_mask=seen)
