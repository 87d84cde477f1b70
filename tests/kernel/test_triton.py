"""The Triton kernels at every mask, length, head dim and layout: in the interpreter at tiny sizes, on a GPU at all."""

import importlib.util

import pytest
import torch

from accuracy.kernel.triton import available
from tests.kernel.problem import NAMES, Problem, errors, results, within

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
BACKWARDS = {way: available.PARTS[f"triton_{way}_backward"] for way in ("split", "fused")}
TINY = {  # what the contract of all kernels does not ask
    "more_queries_than_keys": Problem(queries=75, keys=41),
    "one_key": Problem(queries=35, keys=1),
    "one_each": Problem(queries=1, keys=1),
    "narrow": Problem(queries=40, keys=40, dim=8),
    "between_powers_of_two": Problem(queries=33, keys=64, dim=96, causal=False),
    "large_scale": Problem(scale=3.0),
}
DIMS = {torch.bfloat16: (32, 64, 96, 128, 256), torch.float16: (128,), torch.float32: (64, 256)}
GRID = [
    Problem(queries=rows, keys=keys, heads=8, heads_kv=heads_kv, dim=dim, causal=causal, dtype=dtype, batch=2)
    for dtype, dims in DIMS.items()
    for dim in dims
    for rows, keys, heads_kv in ((512, 512, 2), (333, 777, 8), (1025, 511, 1))
    for causal in (True, False)
]


def run(problem: Problem, name: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return results(BACKWARDS[name].KERNEL().build(tensors[0].device.type), problem, tensors)


def assert_right(problem: Problem, backward: str, device: str) -> None:
    tensors = problem.draw(device)
    found = errors(run(problem, backward, tensors), problem.reference(*tensors), problem.dtype)
    assert within(found), found


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.stress(6, "name", "backward")
@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("name", TINY)
def test_it_is_right_in_the_interpreter(name: str, backward: str, poisoned: None) -> None:
    assert_right(TINY[name], backward, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("problem", GRID, ids=str)
def test_it_is_right_on_the_gpu(problem: Problem, backward: str, poisoned: None) -> None:
    assert_right(problem, backward, "cuda")


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *args, original=original, **how: original(*args, **how).fill_(torch.nan)
        )


@pytest.mark.parametrize("backward", BACKWARDS)
def test_strided_inputs_give_the_bits_of_contiguous_ones(backward: str, device: str) -> None:
    """Heads first in memory, rows out of a longer tensor, NaN in what lies around them."""
    problem = Problem(queries=33, keys=40, dtype=torch.float16)
    tensors = problem.draw(device)
    strided = []
    for x in tensors:
        longer = x.new_full((x.shape[0], x.shape[2] + 1, x.shape[1] + 7, x.shape[3] + 8), torch.nan)
        strided.append(longer[:, :-1, 3:-4, :-8].transpose(1, 2))
        strided[-1].copy_(x)
    expected, found = (run(problem, backward, each) for each in (tensors, strided))
    for name, x, y in zip(NAMES, expected, found, strict=True):
        if name != "dq" or backward == "split" or device == "cpu":
            assert torch.equal(x, y), name


def test_what_it_cannot_take_is_an_error(device: str) -> None:
    kernel = available.TritonCarry().build(device)
    q, k, v, _ = Problem(dim=32, queries=4, keys=4).draw(device)
    with pytest.raises(ValueError, match="head dim contiguous"):
        kernel.forward(q[..., ::2], k[..., ::2], v[..., ::2], scale=1.0, causal=True, out_dtype=q.dtype)
    with pytest.raises(ValueError, match=r"scale=-1\.0; allowed: above 0"):
        kernel.forward(q, k, v, scale=-1.0, causal=True, out_dtype=q.dtype)


def test_only_the_split_backward_is_called_deterministic_and_nothing_runs_without_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    stated = {name: module.KERNEL().abilities("cuda") for name, module in BACKWARDS.items()}
    assert {name: each.deterministic for name, each in stated.items()} == {"split": True, "fused": False}
    assert stated["split"].dtypes == ("bfloat16", "float16", "float32")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs triton" in available.TritonKernel().abilities("cuda").missing
