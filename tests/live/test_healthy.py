"""Functions of strangers, whatever they are given: healthy ones are not accused, faulty ones are found."""

from pathlib import Path

import pytest
import torch

import accuracy
from accuracy.live.judge import Judgement
from tests.foreign import functions

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
INPUTS = ("gaussian", "peaked", "far from zero", "small")
HEALTHY = ("eager", "eager_out", "softmax_in_float32", "sdpa", "forward_only")
FAULTY = {"eager_sees_one_later": "out", "eager_lse_to_base_2": "lse", "eager_lse_in_bfloat16": "lse"}


def judged(folder: Path, name: str, inputs: str, dtype: torch.dtype, layout: str) -> Judgement:
    generator = torch.Generator().manual_seed(len(inputs))
    q, k, v, dout = (torch.randn(1, 40, heads, 16, generator=generator) for heads in (4, 2, 2, 4))
    if inputs == "peaked":
        q = 8 * q
    elif inputs == "far from zero":
        k, v = k + 5, v + 3
    elif inputs == "small":  # float16 has no normal numbers there
        v, dout = v * 1e-3, dout * 1e-6
    q, k, v, dout = (x.to(dtype) for x in (q, k, v, dout))
    if layout == "bhsd":
        q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    function = getattr(functions, name)
    with accuracy.capture(None, folder, functions=[function], layout=layout):
        out = getattr(functions, name)(q, k, v, causal=True, softmax_scale=0.25, group=None)
        out = out[0] if isinstance(out, tuple) else out
        if out.requires_grad:
            out.backward(dout)
    return accuracy.judge(folder)


@pytest.mark.stress(6, "name", "inputs", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_functions_are_not_accused(tmp_path: Path, name: str, inputs: str, dtype: torch.dtype) -> None:
    found = judged(tmp_path, name, inputs, dtype, functions.HEALTHY[name].layout)
    assert found.healthy, found.sentence


@pytest.mark.stress(3, "name", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAULTY)
def test_faulty_ones_are_found_with_the_tensor_that_is_wrong_first(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    found = judged(tmp_path, name, "gaussian", dtype, "bshd")
    assert found.judged.first is not None
    assert found.judged.first["tensor"] == FAULTY[name]
