"""The Triton kernels at every mask, length, head dim and layout: in the interpreter at tiny sizes, on a GPU at all.

And their tests can fail: a planted slip in a kernel's source is seen by the same comparison.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import accuracy
from accuracy.core import plugins
from accuracy.kernel.triton import available
from tests.contract.kernel.problem import NAMES, Problem, errors, results, within

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


def run(problem: Problem, backward: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return results(BACKWARDS[backward].KERNEL().build(tensors[0].device.type), problem, tensors)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "empty_like"):
        fresh = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, fresh=fresh, **how: fresh(*args, **how).fill_(torch.nan))


def assert_right(problem: Problem, backward: str) -> None:
    tensors = problem.draw(DEVICE)
    found = errors(run(problem, backward, tensors), problem.reference(*tensors), problem.dtype)
    assert within(found), found


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter is for machines without a GPU")
@pytest.mark.stress(4, "backward")
@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("name", TINY)
def test_it_is_right_in_the_interpreter(name: str, backward: str, poisoned: None) -> None:
    assert_right(TINY[name], backward)


@pytest.mark.gpu
@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("problem", GRID, ids=str)
def test_it_is_right_on_the_gpu(problem: Problem, backward: str, poisoned: None) -> None:
    assert_right(problem, backward)


@pytest.mark.parametrize("backward", BACKWARDS)
def test_strided_inputs_give_the_bits_of_contiguous_ones(backward: str) -> None:
    """Heads first in memory, rows out of a longer tensor, NaN in what lies around them."""
    problem = Problem(queries=33, keys=40, heads=1, dtype=torch.float16)
    tensors = problem.draw(DEVICE)
    strided = []
    for x in tensors:
        longer = x.new_full((x.shape[0], x.shape[2] + 1, x.shape[1] + 7, x.shape[3] + 8), torch.nan)
        strided.append(longer[:, :-1, 3:-4, :-8].transpose(1, 2))
        strided[-1].copy_(x)
    expected, found = (run(problem, backward, each) for each in (tensors, strided))
    for name, x, y in zip(NAMES, expected, found, strict=True):
        if name != "dq" or backward == "split" or DEVICE == "cpu":
            assert torch.equal(x, y), name


def test_what_it_cannot_do_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = available.TritonCarry().build(DEVICE)
    q, k, v, _ = Problem(dim=32, queries=4, keys=4).draw(DEVICE)
    with pytest.raises(ValueError, match="head dim contiguous"):
        kernel.forward(q[..., ::2], k[..., ::2], v[..., ::2], scale=1.0, causal=True, out_dtype=q.dtype)
    with pytest.raises(ValueError, match=r"scale=-1\.0; allowed: above 0"):
        kernel.forward(q, k, v, scale=-1.0, causal=True, out_dtype=q.dtype)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    stated = {name: module.KERNEL().abilities("cuda") for name, module in BACKWARDS.items()}
    assert {name: each.deterministic for name, each in stated.items()} == {"split": True, "fused": False}
    assert stated["split"].dtypes == ("bfloat16", "float16", "float32")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs triton" in available.TritonKernel().abilities("cuda").missing


PROBLEM = Problem(queries=75, keys=100, dim=24)
SLIPS = [  # file, what stands there, what a slip makes of it, tensors that must show it
    ("forward", "value, accumulator * fade[:, None]", "value, accumulator", {"out"}),
    ("forward", "k_row, v_row, 0, whole,", "k_row, v_row, 32, whole,", {"out", "lse"}),
    ("forward", "<= last[:, None]", "< last[:, None]", {"out", "lse"}),
    ("forward", "tl.max(scores, 1) * scale", "tl.max(scores, 1)", set()),  # any bound of the scores gives the same
    ("forward", "tl.log2(divisor)) * LN_2", "tl.log2(divisor))", {"lse"}),
    ("backward", "- mean[:, None]", "", {"dq"}),
    ("backward", "range(0, group * tiles", "range(0, group * tiles - 1", {"dk", "dv"}),
    ("backward", "head * q_head + place", "place", {"dk"}),
    ("backward", "tl.where(visible, weights, 0.0)", "weights", {"dq", "dk", "dv"}),
]


def broken(folder: Path, file: str, before: str, after: str) -> ModuleType:
    """A copy of a kernel's file in which its source says something else."""
    source = (Path(accuracy.__file__).parent / "kernel" / "triton" / f"{file}.py").read_text()
    assert before in source, f"{file} no longer says {before!r}"
    (folder / f"{file}.py").write_text(source.replace(before, after))
    return plugins.load(str(folder / f"{file}.py"))


@pytest.mark.stress(4, "file")
@pytest.mark.parametrize(("file", "before", "after", "tensors"), SLIPS)
def test_a_slip_in_a_kernel_is_seen(tmp_path: Path, file: str, before: str, after: str, tensors) -> None:
    """In a forward and a split backward of which one file is broken; the backward gets the right out and lse."""
    from accuracy.kernel.triton import backward, forward

    module = broken(tmp_path, file, before, after)
    q, k, v, dout = PROBLEM.draw(DEVICE)
    how = {"scale": PROBLEM.scale, "causal": True}
    right = forward.attend(q, k, v, **how, out_dtype=q.dtype)
    out, lse = module.attend(q, k, v, **how, out_dtype=q.dtype) if file == "forward" else right
    gradients = (backward if file == "forward" else module).gradients(
        dout, q, k, v, *right, **how, gradient_dtype=q.dtype
    )
    found = errors((out, lse, *gradients), PROBLEM.reference(q, k, v, dout), q.dtype)
    seen = {name for name, error in found.items() if not error < 1}
    assert seen >= tensors, found
    assert tensors or not seen, found
