import importlib.util
from itertools import pairwise

import pytest
import torch

from accuracy.core.masks import Block
from accuracy.kernel.block.running_state import RunningState, SoftmaxState
from accuracy.kernel.triton.available import TritonCarry
from tests.kernel.problem import Problem, errors, within

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **how: original(*args, **how).fill_(torch.nan))


def carried(problem: Problem, blocks: list[Block], tensors: list[torch.Tensor]) -> SoftmaxState:
    q, k, v, _ = tensors
    running = RunningState(TritonCarry().build(DEVICE).carry, q)
    for block in blocks:
        running.add(block, k[:, block.key], v[:, block.key], problem.scale)
    assert running.state is not None
    return running.state


def split(keys: int, *borders: int) -> list[Block]:
    edges = [0, *borders, keys]
    return [Block(slice(0, 40), slice(a, b), False) for a, b in pairwise(edges)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_whole_tiles_give_the_bits_of_one_call(dtype: torch.dtype) -> None:
    """Tiles hold 32 keys in float32 and 64 in 16 bits: at multiples of 64 both do the same sums in the same order."""
    problem = Problem(queries=40, keys=330, causal=False, dtype=dtype)
    tensors = problem.draw(DEVICE)
    whole, pieces = (carried(problem, split(330, *borders), tensors) for borders in ((), (64, 256)))
    for name in ("accumulator", "row_max", "row_sum"):
        assert torch.equal(getattr(whole, name), getattr(pieces, name)), name


RINGS = {
    "unequal": (False, split(133, 1, 34, 101)),
    "diagonal_first": (True, [Block(slice(0, 40), slice(93, 133), True), *split(93, 50)]),
    "diagonal_last": (True, [*split(93, 31, 64), Block(slice(0, 40), slice(93, 133), True)]),
    "rows_in_chunks": (
        True,
        [
            Block(slice(0, 13), slice(93, 106), True),
            Block(slice(13, 40), slice(93, 106), False),
            Block(slice(13, 40), slice(106, 133), True),
            Block(slice(0, 40), slice(0, 93), False),
        ],
    ),
}


@pytest.mark.stress(4, "name", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RINGS)
def test_any_blocks_in_any_order_give_the_reference(name: str, dtype: torch.dtype) -> None:
    """Held to what one call is held to: a rescaling by 2^(m - m') rounds a float32 once, four blocks four times."""
    causal, blocks = RINGS[name]
    problem = Problem(queries=40, keys=133, causal=causal, dtype=dtype)
    tensors = problem.draw(DEVICE)
    state = carried(problem, blocks, tensors)
    reference = problem.reference(*tensors)[:2]
    found = errors(state.result(dtype, torch.float32), reference, dtype)
    assert within(found), found
    assert state.accumulator.dtype == state.row_max.dtype == state.row_sum.dtype == torch.float32


def test_lse_and_out_of_a_state_are_rounded_once() -> None:
    """Against the same state in float64: out to half a unit of float16 and of float32's division, lse to 2^-24."""
    problem = Problem(queries=40, keys=133, causal=False, dtype=torch.float16)
    state = carried(problem, split(133, 50), problem.draw(DEVICE))
    out, lse = state.result(torch.float16, torch.float32)
    exact = state.accumulator.double() / state.row_sum.double().transpose(1, 2).unsqueeze(-1)
    exact_lse = (state.row_max.double() + state.row_sum.double().log2()) * torch.log(torch.tensor(2.0).double())
    normal = exact.abs() > 2.0**-14
    assert ((out.double() - exact).abs() / exact.abs())[normal].max() <= 2**-11 + 2**-23
    assert ((lse.double() - exact_lse).abs() / exact_lse.abs()).max() <= 2**-24


def test_rows_that_see_no_key_stay_empty_until_they_see_one() -> None:
    """More queries than keys under the causal mask: the first rows have no key; a later full block gives them some."""
    problem = Problem(queries=40, keys=25, dim=32)
    tensors = problem.draw(DEVICE)
    q, k, v, _ = tensors
    state = carried(problem, [Block(slice(0, 40), slice(0, 25), True)], tensors)
    out, lse = state.result(torch.float32, torch.float32)
    assert (out[:, :15] == 0).all()
    assert torch.isneginf(lse[:, :, :15]).all()
    assert within(errors((out, lse), problem.reference(*tensors)[:2], torch.float32))
    running = RunningState(TritonCarry().build(DEVICE).carry, q, state)
    running.add(Block(slice(0, 15), slice(0, 25), False), k, v, problem.scale)
    found, _ = running.result(torch.float32, torch.float32)
    every = Problem(queries=40, keys=25, dim=32, causal=False).reference(*tensors)[0]
    assert (found[:, :15].double() - every[:, :15]).norm() / every[:, :15].norm() < 128 * 2**-24


def test_no_block_at_all_is_an_empty_result() -> None:
    q = torch.randn(1, 3, 2, 32, device=DEVICE)
    out, lse = RunningState(TritonCarry().build(DEVICE).carry, q).result(torch.float32, torch.float32)
    assert (out == 0).all()
    assert torch.isneginf(lse).all()
