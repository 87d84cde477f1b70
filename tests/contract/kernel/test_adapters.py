"""What our adapters of flex_attention, FlashInfer and SageAttention hand on, seen without a GPU."""

import importlib.util
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from accuracy.kernel import flex_attention
from accuracy.kernel.lowp import out_alone, quantised
from tests.contract.kernel.problem import Problem, relative


def test_flex_attention_s_lse_is_natural_and_its_mask_aligned_at_the_bottom_right() -> None:
    """Unfused; GQA, 5 rows over 37 keys. Bound: sums of 16 products, and u for each of the four operations on lse."""
    problem = Problem(queries=5, keys=37, heads=4, heads_kv=2, dim=16, dtype=torch.float64, batch=2)
    tensors, kernel = problem.draw("cpu"), flex_attention.KERNEL().build("cpu")
    found = kernel.forward(*tensors[:3], scale=problem.scale, causal=True, out_dtype=torch.float64)
    assert [x.shape for x in found] == [(2, 5, 4, 16), (2, 4, 5)]
    assert max(relative(found, problem.reference(*tensors)).values()) < 32 * 2.0**-53


def prefill(
    q: Tensor, k: Tensor, v: Tensor, scale_q: Tensor, scale_k: Tensor, scale_v: Tensor, *, o_dtype: torch.dtype,
    causal: bool, sm_scale: float, backend: str,
) -> Tensor:  # fmt: skip
    """FlashInfer's signature (flashinfer/prefill.py), in float32: codes (S, heads, D), a scale a head."""
    assert backend == "fa3" and q.dtype == k.dtype == v.dtype == torch.float8_e4m3fn  # noqa: PT018
    given = [(x.float() * scale[:, None]).transpose(0, 1) for x, scale in ((q, scale_q), (k, scale_k), (v, scale_v))]
    query, key, value = given[0], *(x.repeat_interleave(q.shape[1] // k.shape[1], 0) for x in given[1:])
    scores = query @ key.mT * sm_scale
    if causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(k.shape[0] - q.shape[0] + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1).to(o_dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_flashinfer_gets_codes_and_scales_that_its_emulation_has(causal: bool, monkeypatch) -> None:
    """All but P's cast and the sums: the same to float16's roundings. With other scales more."""
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(single_prefill_with_kv_cache=prefill))
    problem = Problem(queries=96, keys=130, heads=4, heads_kv=2, dim=64, dtype=torch.float16, batch=2)
    q, k, v, _ = problem.draw("cpu")
    how = {"scale": 0.125, "causal": causal, "out_dtype": torch.float16}
    out, lse = out_alone.FlashinferFp8().forward(q, k, v, **how)
    assert lse is None
    exact_weights = {"policy": "flashinfer_e4m3", "p": "none", "cut_products": False, "accumulator_bits": 24}
    expected, _ = quantised.KERNEL(**exact_weights).forward(q, k, v, **how)
    assert relative([out], [expected])["out"] < 2e-3  # roundings to float16
    others, _ = quantised.KERNEL(**exact_weights, granularity="tensor").forward(q, k, v, **how)
    assert relative([out], [others])["out"] > 1e-2


def test_where_fp8_is_not_taken_a_row_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, package, words in (
        (10, None, "needs compute capability 9 (its backend fa3), this GPU has 10"),
        (9, None, "needs the package flashinfer"),
        (9, "flashinfer", "compiles at its first use: needs nvcc"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=(capability, 0): found)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, there=package: name == there or None)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        assert out_alone.FlashinferFp8().abilities("cuda").missing.startswith(words)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAGE = Problem(queries=256, keys=256, heads_kv=1, dim=64, scale=0.125, dtype=torch.float16)


def of_sage(problem: Problem, inputs: str) -> list[Tensor]:
    """q, k, v. A heavy channel of k, outliers of 20 deviations, and values of one sign."""
    q, k, v, _ = problem.draw(DEVICE)
    if inputs == "channel":
        k[..., 3] *= 8
    if inputs == "one_sign":  # and so the sums of P v in float16 are seen
        q, k, v = (x.abs() for x in (q, k, v))
    if inputs == "outliers":
        for x in (q, k, v):
            x.view(-1)[::997] *= 20
    return [q, k, v]


@pytest.mark.skipif(importlib.util.find_spec("sageattention") is None, reason="needs sageattention")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.stress(2, "causal")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("inputs", ["gaussian", "channel", "outliers", "one_sign"])
def test_one_policy_of_the_emulation_has_the_package_s_errors(inputs: str, causal: bool) -> None:
    """SageAttention 1.0.6's own Triton kernels, interpreted. Policy `sage` was chosen on Gaussian inputs: norms of the
    errors within 2%, and the errors correlate at 0.9, with blocks of other queries less."""
    problem = replace(SAGE, causal=causal)
    tensors = of_sage(problem, inputs)
    how = {"scale": problem.scale, "causal": causal, "out_dtype": torch.float16}
    before = [x.clone() for x in tensors]
    out, lse = out_alone.Sage().build(DEVICE).forward(*tensors, **how)
    assert lse is None
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))  # the package writes to its k
    expected = problem.reference(*tensors, torch.zeros_like(tensors[0]))[0]
    theirs, mine, wrong = (
        each.double() - expected
        for each in (out, *(quantised.KERNEL(policy="sage", key_chunk=64, **knobs).forward(*tensors, **how)[0]
                            for knobs in ({}, {"query_block": 64})))
    )  # fmt: skip
    assert float(mine.norm() / theirs.norm()) == pytest.approx(1, abs=0.02)
    alike, less = (float((x * theirs).sum() / x.norm() / theirs.norm()) for x in (mine, wrong))
    assert alike > max(0.9, less)
