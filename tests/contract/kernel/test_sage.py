"""SageAttention 1.0.6, the package's own Triton kernels, interpreted: the adapter, and the emulation of it."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from accuracy.kernel.lowp.out_alone import Sage as KERNEL
from accuracy.kernel.lowp.quantised import KERNEL as EMULATED
from tests.contract.kernel.problem import Problem

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sageattention") is None, reason="needs sageattention"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROBLEM = Problem(queries=256, keys=256, heads_kv=1, dim=64, scale=0.125, dtype=torch.float16)


def drawn(problem: Problem, inputs: str) -> list[torch.Tensor]:
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


@pytest.mark.stress(2, "causal")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("inputs", ["gaussian", "channel", "outliers", "one_sign"])
def test_one_policy_of_the_emulation_has_the_package_s_errors(inputs: str, causal: bool) -> None:
    """Policy `sage` was chosen on Gaussian inputs: norms of the errors within 2%, and the errors correlate at 0.9, with
    blocks of other queries less."""
    problem = replace(PROBLEM, causal=causal)
    tensors = drawn(problem, inputs)
    how = {"scale": problem.scale, "causal": causal, "out_dtype": torch.float16}
    before = [x.clone() for x in tensors]
    out, lse = KERNEL().build(DEVICE).forward(*tensors, **how)
    assert lse is None
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))  # the package writes to its k
    expected = problem.reference(*tensors, torch.zeros_like(tensors[0]))[0]
    theirs, mine, wrong = (
        each.double() - expected
        for each in (out, *(EMULATED(policy="sage", key_chunk=64, **knobs).forward(*tensors, **how)[0]
                            for knobs in ({}, {"query_block": 64})))
    )  # fmt: skip
    assert float(mine.norm() / theirs.norm()) == pytest.approx(1, abs=0.02)
    alike, less = (float((x * theirs).sum() / x.norm() / theirs.norm()) for x in (mine, wrong))
    assert alike > max(0.9, less)
