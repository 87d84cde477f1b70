"""Pairs of queries and keys read off returned tensors, of attention by autograd with something planted."""

import pytest
import torch
from torch import Tensor

from accuracy.explain.one_hot import rows
from accuracy.runtime.sharding import cut
from tests.measuring import case_of, cases, pipeline
from tests.planted import NAMES, Plain, Plant
from tests.variants import schedules, skip_if_bound_to_a_kernel

SHAPE = ("inputs=one_hot", "problem.batch=1", "problem.seqlen=16", "problem.heads=4", "problem.heads_kv=2",
         "problem.head_dim=64", "problem.softmax_scale=0.2", "kernel=eager")  # fmt: skip


def measured(*words: str) -> list[list]:
    """The rows of `steps/` of each case."""
    by = pipeline()
    found = [by.measure(case) for case in cases(*SHAPE, *words)]
    assert found
    assert all(each.status == "ok" for each in found)
    return [list(each.table("steps")) for each in found]


@pytest.mark.stress(4, "mask")
@pytest.mark.parametrize("variant", schedules())
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_healthy_schedule_holds_each_visible_pair_once(variant: str, mask: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    words = f"variant={variant}", f"problem.mask={mask}", "dtype=[bfloat16,float16,float32,float64]"
    assert not any(measured(*words, "world_size=[1,2,4,8]", "unusable=record"))


def of_function(fn: Plant, mask: str = "causal") -> list[tuple]:
    """(rank, tensor, finding, pairs) of what a function of all ranks' tensors returns on 4 ranks."""
    case = case_of("variant=ring", "world_size=4", "dtype=float64", f"problem.mask={mask}", *SHAPE)
    targets = pipeline().targets(case)
    ones = torch.ones(16, 16, dtype=torch.float64)
    plain = Plain(*targets.inputs.tensors, ones if mask == "full" else ones.tril(), torch.arange(4) // 2)
    shards = {name: cut(x, "contiguous", 4) for name, x in fn(plain).items()}
    if "lse" in shards:
        shards["lse"] = shards["lse"].transpose(2, 3)
    results = [tuple(shards[name][rank] if name in shards else None for name in NAMES) for rank in range(4)]
    return [(row["rank"], row["tensor"], row["finding"], row["count"]) for row in rows(case, targets, results)]


def forward_with(value: float, query: slice | int, key: slice | int, lse: bool = False) -> Plant:
    """Pairs counted so many times."""

    def fn(plain: Plain) -> dict[str, Tensor]:
        mask = plain.mask.clone()
        mask[query, key] = value
        return {name: x for name, x in plain.but(mask=mask).results().items() if lse or name != "lse"}

    return fn


def backward_with(times: float, *names: str) -> Plant:
    """The block of rank 2's queries and rank 0's keys, so many times more."""

    def fn(plain: Plain) -> dict[str, Tensor]:
        found, part = plain.results(), plain.part(torch.arange(8, 12), torch.arange(4))
        return found | {name: found[name] + times * part[name] for name in names}

    return fn


BLOCK = slice(8, 12), slice(0, 4)
FUNCTIONS = {  # what a function does, and what must be found
    "nothing wrong": (lambda plain: plain.results(), []),
    "out only": (lambda plain: {"out": plain.results()["out"]}, []),
    "a pair masked": (forward_with(0.0, 9, 3), [(2, "out", "left out", 1)]),
    "one of two keys masked": (forward_with(0.0, 1, 0), [(0, "out", "left out", 1)]),
    "a block skipped": (forward_with(0.0, *BLOCK), [(2, "out", "left out", 16)]),
    "a block counted twice": (forward_with(2.0, *BLOCK, lse=True), [(2, "out", "counted again", 16)]),
    "a later key": (forward_with(1.0, 9, 10), [(2, "out", "shown", 1)]),
    "a block skipped in the backward": (
        backward_with(-1.0, "dq", "dk", "dv"),
        [(2, "dq", "left out", 16), (0, "dk", "left out", 16), (0, "dv", "left out", 16)],
    ),
    "a partial added twice": (backward_with(1.0, "dk"), [(0, "dk", "counted again", 16)]),
    "a factor, which is no count": (lambda plain: {n: 3 * x for n, x in plain.results().items() if n != "lse"}, []),
    "another scale": (lambda plain: plain.but(scale=0.7).results(), []),
}


@pytest.mark.stress(5)
@pytest.mark.parametrize("what", FUNCTIONS)
def test_what_a_function_counts_is_read_off_its_tensors(what: str) -> None:
    fn, expected = FUNCTIONS[what]
    assert of_function(fn) == expected


def test_a_gradient_of_a_wrong_delta_leaves_out_no_pair() -> None:
    """Each row has the weights 1/16: 16 times delta is dP of the one pair that has any, which is 0 then, and a small
    delta leaves nothing of the other pairs."""

    def with_delta(times: float, plain: Plain) -> dict[str, Tensor]:
        right, keys = plain.results(), plain.k[:, :, plain.heads].mean(1, keepdim=True)
        delta = (plain.dout * right["out"]).sum(-1, keepdim=True)
        return right | {"dq": right["dq"] + (1 - times) * delta * keys * plain.scale}

    for times in (0, 1 / 64, 16):
        assert of_function(lambda plain, times=times: with_delta(times, plain), "full") == []


def test_other_inputs_and_more_tokens_than_a_row_tells_apart_are_not_counted() -> None:
    broken = ("variant=[]", "+variant.planted.forward=tests.unit.fault.planted:dropped_key", "world_size=4",
              "+variant.planted.backward=ring", "+variant.planted.sharding=contiguous", "dtype=float32")  # fmt: skip
    for words, counted in (((), True), (("inputs=[]", "inputs=gaussian"), False), (("problem.seqlen=72",), False)):
        assert [bool(rows) for rows in measured(*broken, *words)] == [counted]
