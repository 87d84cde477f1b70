"""The Triton FP8 kernels against their emulation under the same policy: in the interpreter at tiny sizes, on a GPU.

Casts of q, k, v and dout are the same on both sides. Scores are float32 sums in another order, so a weight is off by
1e-6 of itself at most; a share 2e-6 / 2^-4 of weights so lies next to a tie of e4m3 and may go the other way, by 2^-3
of itself: sqrt(3e-5) / 8 = 7e-4 of P in the Frobenius norm, 1.0e-3 in e5m2; dS the same, where a difference of
products makes it twice as much. Of one such difference dq and dk take both: 4e-3 is allowed. A prescale that is missing
or another scale is 10 times as much.
"""

import importlib.util
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.paths import EXPERIMENTS
from accuracy.core.quantisation import policy_of
from accuracy.kernel.lowp import operand, quantised
from tests.contract.kernel.problem import Problem, relative, results

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
KERNEL = plugins.load(str(EXPERIMENTS / "fp8_fit/kernel/triton_fp8.py")).KERNEL
BAND = 4e-3
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]  # of a thread's numbers in 16 columns of a product
TINY = Problem(queries=66, keys=133, dim=32)
SUBJECTS = {
    "tensor": (TINY, {"policy": "fp8_tensor"}),
    "heads": (replace(TINY, causal=False), {"policy": "fp8_tensor", "granularity": "head"}),
    "blocks": (replace(TINY, queries=133), {"policy": "fp8_block"}),
    "e5m2 for gradients, turned": (TINY, {"policy": "fp8_gradients_e5m2", "hadamard": True}),
    "no prescale": (replace(TINY, heads_kv=2), {"policy": "fp8_no_prescale"}),
    "two accumulators": (replace(TINY, heads=1, queries=40, keys=290), {"policy": "fp8_hopper_flush", "key_chunk": 32}),
    "one accumulator": (replace(TINY, dim=48, queries=40, batch=2), {"policy": "fp8_hopper"}),
}  # fmt: skip


def emulated(problem: Problem, tensors: list[Tensor], **knobs: object) -> list[Tensor]:
    """With float32 sums, as the interpreter's are."""
    plain = {"key_chunk": 64, **knobs, "policy": re.sub("_hopper(_flush)?", "_tensor", str(knobs["policy"]))}
    plain.pop("flush_interval", None)
    return results(quantised.KERNEL(**plain), problem, tensors, torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.stress(3)
@pytest.mark.parametrize("name", SUBJECTS)
def test_it_is_its_emulation_in_the_interpreter(name: str) -> None:
    problem, knobs = SUBJECTS[name]
    tensors = problem.draw("cpu")
    found = results(KERNEL(**knobs).build("cpu"), problem, tensors)
    apart = relative(found, emulated(problem, tensors, **knobs))
    assert max(apart.values()) < BAND, apart
    assert apart["lse"] < 1e-6, apart
    other = emulated(problem, tensors, **knobs | {"p_prescale": 16.0 if name == "no prescale" else 1.0, "v": "e5m2"})
    assert relative(found, other)["out"] > 10 * BAND
    assert relative(found, other)["dv"] > 2 * BAND


def test_a_copy_has_its_tokens_transposed_or_in_a_threads_order() -> None:
    policy = policy_of("fp8_tensor")
    found = operand.cast(torch.randn(2, 133, 3, 48, generator=torch.Generator().manual_seed(1)), policy.q, policy)
    turned, interleaved = (x.view(torch.uint8) for x in (found.transposed, found.interleaved))
    assert torch.equal(turned[..., :133], found.codes.view(torch.uint8).transpose(2, 3))
    assert torch.equal(interleaved[..., :16], turned[..., ORDER])


LARGE = Problem(queries=1024, keys=1024, heads=8, heads_kv=2, dim=128, dtype=torch.bfloat16, scale=128**-0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("knobs", [{"policy": "fp8_tensor"}, {"policy": "fp8_block"}, {"policy": "fp8_e5m2"}], ids=str)
def test_it_is_its_emulation_on_the_gpu(knobs: dict[str, object], causal: bool) -> None:
    """On Hopper with the tensor core's own sums of 32 terms, and so as near as in the interpreter. Of scales of blocks
    against float32 sums: 14 bits, 2^-13 of a sum a product, move 2^-13 / 2^-4 of the casts by 2^-3, 5e-3, and more of
    dS."""
    problem = replace(LARGE, causal=causal)
    tensors = problem.draw("cuda")
    found = results(KERNEL(**knobs), problem, tensors, torch.float32)
    own = torch.cuda.get_device_capability()[0] == 9 and knobs["policy"] != "fp8_block"
    sums = {"accumulator_bits": 14, "cut_products": True, "flush_interval": 32} if own else {}
    apart = relative(found, results(quantised.KERNEL(key_chunk=64, **knobs, **sums), problem, tensors, torch.float32))
    assert max(apart.values()) < (BAND if own else 2e-2), apart
