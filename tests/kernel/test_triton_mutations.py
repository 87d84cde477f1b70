"""The tests of the Triton kernels can fail: a planted slip in a kernel's source is seen by the same comparison.

A mutation replaces one piece of a file's source; the broken copy takes the file's place in the launchers.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

import accuracy
from accuracy.core import plugins
from accuracy.core.masks import Block
from accuracy.kernel.block.running_state import RunningState
from tests.kernel.problem import Problem, errors, within

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = Path(accuracy.__file__).parent / "kernel" / "triton"
PROBLEM = Problem(queries=75, keys=100, dim=24)

# file, what stands there, what a slip makes of it, tensors that must show it
MUTATIONS = [
    ("forward", "value, accumulator * fade[:, None]", "value, accumulator", {"out"}),
    ("forward", "total = total * fade + ", "total = total + ", {"out", "lse"}),
    ("forward", "k_row, v_row, 0, whole,", "k_row, v_row, 32, whole,", {"out", "lse"}),
    ("forward", "v_row, whole, end, keys", "v_row, whole, end - 5, keys", {"out", "lse"}),
    ("forward", "<= last[:, None]", "< last[:, None]", {"out", "lse"}),
    ("forward", "head // group * v_head", "head * v_head", {"out"}),
    ("forward", "tl.max(scores, 1) * scale", "tl.max(scores, 1)", set()),  # any bound of the scores gives the same
    ("forward", "tl.log2(divisor)) * LN_2", "tl.log2(divisor))", {"lse"}),
    ("query_gradient", "- mean[:, None]", "", {"dq"}),
    ("query_gradient", "v_row, row_bits, mean, whole, end,", "v_row, row_bits, mean, whole, end - 32,", {"dq"}),
    ("query_gradient", "total * scale", "total * scale_bits", {"dq"}),
    ("key_gradient", "range(0, group * tiles", "range(0, group * tiles - 1", {"dk", "dv"}),
    ("key_gradient", "first = tl.where(first < whole, first, partial)", "first = first", {"dk", "dv"}),
    ("key_gradient", "dk_total * scale", "dk_total", {"dk"}),
    ("key_gradient", "delta += (batch * heads + head_kv * group)", "delta += (batch * heads)", set()),  # one kv head
    ("key_gradient", "head * q_head + place", "place", {"dk"}),
    ("key_gradient", "tl.where(visible, weights, 0.0)", "weights", {"dk", "dv"}),
    ("backward", "tl.sum(left * right, 1)", "tl.sum(left * left, 1)", {"dq", "dk"}),
]  # fmt: skip


def broken(folder: Path, file: str, before: str, after: str):
    source = (TRITON / f"{file}.py").read_text()
    assert before in source, f"{file} no longer says {before!r}"
    path = folder / f"{file}.py"
    path.write_text(source.replace(before, after))
    return plugins.load(str(path))


def found_errors(monkeypatch: pytest.MonkeyPatch, file: str, module) -> dict[str, float]:
    """Errors of a forward and a split backward of which one file is broken; the backward gets the right out and lse."""
    from accuracy.kernel.triton import backward, forward

    tensors = PROBLEM.draw(DEVICE)
    q, k, v, dout = tensors
    how = {"scale": PROBLEM.scale, "causal": True}
    right = forward.attend(q, k, v, **how, out_dtype=q.dtype)
    out, lse = module.attend(q, k, v, **how, out_dtype=q.dtype) if file == "forward" else right
    name = "row_statistics" if file == "backward" else file
    if file != "forward":
        monkeypatch.setattr(backward, name, getattr(module, name))
    gradients = backward.gradients(dout, q, k, v, *right, **how, gradient_dtype=q.dtype)
    return errors((out, lse, *gradients), PROBLEM.reference(*tensors), q.dtype)


@pytest.mark.stress(6, "file")
@pytest.mark.parametrize(("file", "before", "after", "tensors"), MUTATIONS)
def test_a_slip_in_a_kernel_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, before: str, after: str, tensors: set[str]
) -> None:
    found = found_errors(monkeypatch, file, broken(tmp_path, file, before, after))
    seen = {name for name, error in found.items() if not error < 1}
    assert seen >= tensors, found
    assert tensors or not seen, found


def test_a_slip_in_the_carried_state_is_seen(tmp_path: Path) -> None:
    """The state of the keys before is taken up again: forgetting it gives the last block's attention."""
    module = broken(tmp_path, "forward", "total = tl.load(row_sum +", "total = 0.0 * tl.load(row_sum +")
    problem = Problem(queries=20, keys=50, causal=False, dim=24)
    tensors = problem.draw(DEVICE)
    q, k, v, _ = tensors
    running = RunningState(module.carry, q)
    for key in (slice(0, 30), slice(30, 50)):
        running.add(Block(slice(0, 20), key, False), k[:, key], v[:, key], problem.scale)
    assert not within(errors(running.result(q.dtype, q.dtype), problem.reference(*tensors)[:2], q.dtype))
