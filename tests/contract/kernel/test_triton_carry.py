import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.kernel.block.running_state import RunningState, SoftmaxState
from accuracy.kernel.triton.available import TritonCarry
from accuracy.variant.join import sigmoid
from tests.contract.kernel.problem import Problem, errors, within
from tests.contract.kernel.test_triton import DEVICE, broken

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
ROWS = slice(0, 40)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **how: original(*args, **how).fill_(torch.nan))


def carried(problem: Problem, blocks: list[Block], tensors: list[torch.Tensor], carry: Any = None) -> RunningState:
    q, k, v, _ = tensors
    running = RunningState(carry or TritonCarry().build(DEVICE).carry, q, SoftmaxState.empty(q))
    for block in blocks:
        running.add(block, k[:, block.key], v[:, block.key], problem.scale)
    return running


def split(keys: int, *borders: int) -> list[Block]:
    return [Block(ROWS, slice(a, b), False) for a, b in pairwise([0, *borders, keys])]


def test_blocks_of_whole_tiles_give_the_bits_of_one_call_and_out_and_lse_are_rounded_once() -> None:
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
def test_any_blocks_in_any_order_give_the_reference(name: str, dtype: torch.dtype) -> None:
    """Held to what one call is held to: a rescaling by 2^(m - m') rounds a float32 once, four blocks four times."""
    problem = Problem(queries=40, keys=133, causal=name != "unequal", dtype=dtype)
    tensors = problem.draw(DEVICE)
    found = carried(problem, RINGS[name], tensors).result(dtype, torch.float32)
    assert within(errors(found, problem.reference(*tensors)[:2], dtype))


def test_a_slip_in_the_carried_state_is_seen(tmp_path: Path) -> None:
    """The state of the keys before is taken up again: forgetting it gives the last block's attention."""
    module = broken(tmp_path, "forward", "total = tl.load(row_sum +", "total = 0.0 * tl.load(row_sum +")
    problem = Problem(queries=40, keys=50, causal=False, dim=24)
    tensors = problem.draw(DEVICE)
    found = carried(problem, split(50, 30), tensors, module.carry).result(torch.float32, torch.float32)
    assert not within(errors(found, problem.reference(*tensors)[:2], torch.float32))


def test_rows_that_see_no_key_stay_empty_until_they_see_one() -> None:
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
