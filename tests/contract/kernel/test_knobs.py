from dataclasses import replace

import pytest
import torch

from accuracy.core import plugins
from accuracy.core.paths import PACKAGE
from accuracy.kernel import chunked, eager, in_torch
from accuracy.kernel.base import Kernel
from accuracy.runtime import arithmetic
from tests.contract.kernel.problem import Problem, measured, relative, results

SQUARE = Problem(queries=128, keys=128, heads_kv=2, dim=64, scale=0.125)
ODD = Problem(queries=130, keys=130, heads=4, heads_kv=2, dim=32, scale=32**-0.5, batch=2)


def errors(knobs: Kernel, problem: Problem = SQUARE, stored: torch.dtype | None = None) -> dict[str, float]:
    return measured(knobs.build("cpu"), problem, stored)


def test_where_eager_rounds_is_what_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """P to bfloat16: u = 2^-8, averaged over up to 128 keys (a factor of 12); lse stays in float32's 16 u. All in
    bfloat16 costs all. Float64 inside, float32 outside: one rounding to nearest, at most u of each element. Chunks of
    rows change nothing, but other shapes of products may round otherwise."""
    whole, coarse = errors(eager.Eager()), errors(eager.Eager(probability_dtype="bfloat16"))
    assert min(coarse[name] for name in ("out", "dq", "dk", "dv")) > 2**-8 / 16
    assert coarse["lse"] < 16 * 2**-24
    assert min(errors(eager.Eager(compute_dtype="bfloat16")).values()) > 2**-8 / 16
    fine = errors(eager.Eager(compute_dtype="float64", probability_dtype="float64"))
    assert max(fine["out"], fine["lse"]) < 2**-24
    monkeypatch.setitem(eager.SCORES_AT_ONCE, "cpu", 2 * 128 * 10)
    assert errors(eager.Eager())["out"] == pytest.approx(whole["out"], rel=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_sixteen_bits_cost_out_and_gradients_and_not_the_lse_beside_it(dtype: torch.dtype) -> None:
    """Scores of size 2.4 rounded to 16 bits are off by up to 2.4 u, and so is P; computed in float32 only the result is
    rounded, 0.4 u: more than twice as much."""
    problem = replace(SQUARE, dtype=dtype, scale=0.3)
    fine, coarse = (errors(in_torch.TorchMath(reduced_sums=each), problem) for each in (False, True))
    assert all(coarse[name] > 2 * fine[name] for name in ("out", "dq", "dk", "dv"))
    assert coarse["lse"] == fine["lse"] < 2**-20
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()


def test_chunks_of_any_size_are_right() -> None:
    """Float64: a score is a sum of 32 products, 32 u; each further chunk rounds the sums once more, 50 times at most, a
    random walk of sqrt(50) = 7 u."""
    problem = replace(ODD, queries=50, keys=50, dtype=torch.float64)
    for sizes in ((1, 1), (7, 33), (33, 7), (4096, 4096)):
        assert max(errors(chunked.Chunked(*sizes), problem).values()) < (32 + 7) * 2**-53, sizes


def test_running_sums_in_sixteen_bits_cost_every_sum_and_the_more_the_more_chunks() -> None:
    """130 chunks round a sum 130 times to u = 2^-8, 5 chunks 5 times: a random walk, at least twice as far; lse, whose
    maximum stays in float32, is off by the rounding of ln(total) alone, up to u, and not below u / 64."""
    fine, few, many = (
        errors(chunked.Chunked(key_chunk=keys, **dtype), ODD, torch.float64)
        for keys, dtype in ((26, {}), *((keys, {"accumulator_dtype": "bfloat16"}) for keys in (26, 1)))
    )
    for name in ("out", "dq"):
        assert fine[name] < 16 * 2**-24 < 2**-8 / 4 < few[name] < many[name] / 2, name
    assert min(few["dk"], few["dv"]) > 2**-8 / 16
    assert 2**-8 / 64 < few["lse"] < 2**-8


KERNELS = {path.stem: plugins.load(f"accuracy.kernel.{path.stem}") for path in (PACKAGE / "kernel").glob("[a-z]*.py")}
WITH_TF32 = sorted(name for name, module in KERNELS.items() if hasattr(getattr(module, "KERNEL", None), "tf32"))


def on_gpu(kernel: Kernel) -> dict[str, float]:
    """The relative errors by tensor of what the kernel returns on CUDA for float32 inputs.

    The reference refuses to be computed while the process allows TF32; it comes last, when that no longer matters.
    """
    problem = replace(SQUARE, queries=130, keys=130)
    tensors = problem.draw("cuda")
    found = results(kernel, problem, tensors)
    with arithmetic.switched(tf32_products=False):
        return relative(found, problem.reference(*tensors))


def test_tf32_is_unsupported_on_the_cpu() -> None:
    assert WITH_TF32
    assert all(KERNELS[name].KERNEL(tf32=True).abilities("cpu").missing for name in WITH_TF32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_TF32)
def test_the_knob_decides_and_the_switch_is_put_back(name: str) -> None:
    """TF32 keeps 11 bits of the products' factors: scores of size 1 and V are off by about u = 2^-11, and so is out;
    between u / 16 and 16 u. Float32 keeps 24: 16 u = 2^-20, 2^9 below."""
    for before in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = before
        allowed, forbidden = (on_gpu(KERNELS[name].KERNEL(tf32=tf32).build("cuda")) for tf32 in (True, False))
        assert torch.backends.cuda.matmul.allow_tf32 is before
        for tensor in ("out", "dq", "dk", "dv"):
            assert 2**-15 < allowed[tensor] < 2**-7, tensor
            assert forbidden[tensor] < 2**-20, tensor
