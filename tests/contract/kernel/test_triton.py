"""The Triton kernels at every mask, length, head dim and layout: in the interpreter at tiny sizes, on a GPU at all.

And their tests can fail: a planted slip in a kernel's source is seen by the same comparison.
"""

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.masks import Block
from accuracy.kernel.block.running_state import RunningState, SoftmaxState
from accuracy.kernel.triton import available
from accuracy.variant.join import sigmoid
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


DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
ROWS = slice(0, 40)


def carried(problem: Problem, blocks: list[Block], tensors: list[torch.Tensor], carry: Any = None) -> RunningState:
    q, k, v, _ = tensors
    running = RunningState(carry or available.TritonCarry().build(DEVICE).carry, q, SoftmaxState.empty(q))
    for block in blocks:
        running.add(block, k[:, block.key], v[:, block.key], problem.scale)
    return running


def split(keys: int, *borders: int) -> list[Block]:
    return [Block(ROWS, slice(a, b), False) for a, b in pairwise([0, *borders, keys])]


def test_blocks_of_whole_tiles_give_the_bits_of_one_call_and_out_and_lse_are_rounded_once(poisoned: None) -> None:
    """Tiles hold 64 keys in 16 bits: at multiples of 64 both do the same sums in the same order. Against the same state
    in float64: out to half a unit of float16 and of float32's division, lse to 2^-24."""
    problem = Problem(queries=40, keys=330, causal=False, dtype=torch.float16)
    tensors = problem.draw(DEVICE)
    running, pieces = (carried(problem, split(330, *borders), tensors) for borders in ((), (64, 256)))
    state, other = running.state, pieces.state
    for name in ("accumulator", "row_max", "row_sum"):
        assert getattr(state, name).dtype == torch.float32
        assert torch.equal(getattr(state, name), getattr(other, name)), name
    out, lse = running.result(torch.float16, torch.float32)
    exact = state.accumulator.double() / state.row_sum.double().transpose(1, 2).unsqueeze(-1)
    exact_lse = (state.row_max.double() + state.row_sum.double().log2()) * torch.log(torch.tensor(2.0).double())
    normal = exact.abs() > 2.0**-14
    assert ((out.double() - exact).abs() / exact.abs())[normal].max() <= 2**-11 + 2**-23
    assert ((lse.double() - exact_lse).abs() / exact_lse.abs()).max() <= 2**-24


RINGS = {
    "unequal": split(133, 1, 34, 101),
    "diagonal_first": [Block(ROWS, slice(93, 133), True), *split(93, 50)],
    "diagonal_last": [*split(93, 31, 64), Block(ROWS, slice(93, 133), True)],
    "rows_in_chunks": [
        Block(slice(0, 13), slice(93, 106), True), Block(slice(13, 40), slice(93, 106), False),
        Block(slice(13, 40), slice(106, 133), True), Block(ROWS, slice(0, 93), False),
    ],
}  # fmt: skip


@pytest.mark.stress(3, "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RINGS)
def test_any_blocks_in_any_order_give_the_reference(name: str, dtype: torch.dtype, poisoned: None) -> None:
    """Held to what one call is held to: a rescaling by 2^(m - m') rounds a float32 once, four blocks four times."""
    problem = Problem(queries=40, keys=133, causal=name != "unequal", dtype=dtype)
    tensors = problem.draw(DEVICE)
    found = carried(problem, RINGS[name], tensors).result(dtype, torch.float32)
    assert within(errors(found, problem.reference(*tensors)[:2], dtype))


def test_a_slip_in_the_carried_state_is_seen(tmp_path: Path) -> None:
    """The state of the keys before is taken up again: forgetting it gives the last block's attention."""
    source, before = Path(available.__file__).with_name("forward.py").read_text(), "total = tl.load(row_sum +"
    assert before in source
    (tmp_path / "forward.py").write_text(source.replace(before, "total = 0.0 * tl.load(row_sum +"))
    module = plugins.load(str(tmp_path / "forward.py"))
    problem = Problem(queries=40, keys=50, causal=False, dim=24)
    tensors = problem.draw(DEVICE)
    found = carried(problem, split(50, 30), tensors, module.carry).result(torch.float32, torch.float32)
    assert not within(errors(found, problem.reference(*tensors)[:2], torch.float32))


def test_rows_that_see_no_key_stay_empty_until_they_see_one(poisoned: None) -> None:
    """More queries than keys under the causal mask: the first rows have no key; a later full block gives them some."""
    problem = Problem(queries=40, keys=25, dim=32)
    tensors = problem.draw(DEVICE)
    running = carried(problem, [Block(ROWS, slice(0, 25), True)], tensors)
    out, lse = running.result(torch.float32, torch.float32)
    nothing = SoftmaxState.empty(tensors[0][:, :15]).result(torch.float32, torch.float32)
    for empty_out, empty_lse in ((out[:, :15], lse[:, :, :15]), nothing):
        assert (empty_out == 0).all()
        assert torch.isneginf(empty_lse).all()
    assert within(errors((out, lse), problem.reference(*tensors)[:2], torch.float32))
    _, k, v, _ = tensors
    running.add(Block(slice(0, 15), slice(0, 25), False), k, v, problem.scale)
    found, _ = running.result(torch.float32, torch.float32)
    every = Problem(queries=40, keys=25, dim=32, causal=False).reference(*tensors)[0]
    assert (found[:, :15].double() - every[:, :15]).norm() / every[:, :15].norm() < 128 * 2**-24


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [8, 32, 96, 128, 256])
def test_a_merge_in_one_pass_has_every_bit_of_the_torch_expression(dim: int, dtype: torch.dtype) -> None:
    """On slices of larger tensors, at gaps of lse from 0 to overflow, with infinities of empty partials."""
    from accuracy.kernel.triton import one_pass

    out, block_out = normal(0, 2, 300, 3, dim), normal(1, 2, 150, 3, dim).to(dtype)
    lse, block_lse = normal(2, 2, 300, 3, 1) * 30, (normal(3, 2, 3, 150, 1) * 30).transpose(1, 2)
    block_lse[:, 7] = -torch.inf
    block_lse[:, 9:60] *= normal(4, 2, 51, 3, 1) ** 5  # gaps that are dense around 0, and of hundreds
    block_lse[:, 8] = lse[:, 109]
    rows = slice(101, 251)
    assert one_pass.merges(out[:, rows], lse[:, rows], block_out, block_lse)
    whole_out, whole_lse, found, found_lse = out.clone(), lse.clone(), out.clone(), lse.clone()
    whole_out[:, rows], whole_lse[:, rows] = sigmoid(out[:, rows], lse[:, rows], block_out, block_lse)
    one_pass.merge(found[:, rows], found_lse[:, rows], block_out, block_lse)
    assert torch.equal(found_lse, whole_lse)
    assert torch.equal(found, whole_out)


def test_merges_of_other_dtypes_are_left_to_torch() -> None:
    from accuracy.kernel.triton import one_pass

    merged = torch.zeros(1, 2, 1, 8)
    given = [merged, torch.zeros(1, 2, 1, 1), merged, torch.zeros(1, 2, 1, 1)]
    assert one_pass.merges(*given)
    for place in range(4):
        assert not one_pass.merges(*(x.double() if number == place else x for number, x in enumerate(given)))
