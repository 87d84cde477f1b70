"""SageAttention 1.0.6, the package's own Triton kernels, interpreted: the adapter, and the emulation of it."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from accuracy.kernel.lowp.quantised import KERNEL as EMULATED
from accuracy.kernel.lowp.sage import KERNEL
from accuracy.verdict.label import LOGIC
from accuracy.verdict.verdict import verdicts
from tests.fault.measure import results
from tests.kernel.problem import Problem

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("sageattention") is None, reason="needs sageattention"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROBLEM = Problem(queries=384, keys=384, heads_kv=1, dim=64, scale=0.125, dtype=torch.float16)


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


@pytest.mark.stress(4, "inputs", "causal")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("inputs", ["gaussian", "channel", "outliers", "one_sign"])
def test_one_policy_of_the_emulation_has_the_package_s_errors(inputs: str, causal: bool) -> None:
    """Policy `sage` was chosen on Gaussian inputs: norms of the errors within 2%, and the errors correlate at 0.9."""
    problem = replace(PROBLEM, causal=causal)
    tensors = drawn(problem, inputs)
    how = {"scale": problem.scale, "causal": causal, "out_dtype": torch.float16}
    before = [x.clone() for x in tensors]
    out, lse = KERNEL().build(DEVICE).forward(*tensors, **how)
    assert lse is None
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))  # the package writes to its k
    emulated, _ = EMULATED(policy="sage", key_chunk=64).forward(*tensors, **how)
    expected = problem.reference(*tensors, torch.zeros_like(tensors[0]))[0]
    mine, other = (x.double() - expected for x in (emulated, out))
    assert float(mine.norm() / other.norm()) == pytest.approx(1, abs=0.02)
    assert float((mine * other).sum() / mine.norm() / other.norm()) > 0.9
    same_blocks, _ = EMULATED(policy="sage", key_chunk=64, query_block=64).forward(*tensors, **how)
    wrong = same_blocks.double() - expected
    assert float((wrong * other).sum() / wrong.norm() / other.norm()) < float(
        (mine * other).sum() / mine.norm() / other.norm()
    )


def test_it_is_measured_on_one_device_and_not_called_faulty() -> None:
    words = ("kernel=sage", "dtype=float16", "problem.head_dim=64", "problem.seqlen=160", "problem.heads=2",
             "also=null", "problem.heads_kv=1", "inputs=gaussian", "seed=0")  # fmt: skip
    table = results(("single_device", "ring"), *words, "world_size=1", "unusable=record")
    mine = table[table["variant"] == "single_device"]
    assert set(mine.loc[mine["error_rel"].notna(), "tensor"]) >= {"out", "delta"}
    assert "lse" not in set(mine.loc[mine["error_rel"].notna(), "tensor"])
    reasons = table.loc[table["variant"] == "ring", "reason"].unique()
    assert all("returns out alone" in reason for reason in reasons), reasons
    assert LOGIC not in set(verdicts(mine)["label"])
