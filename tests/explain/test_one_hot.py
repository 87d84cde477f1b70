"""Pairs of queries and keys read off returned tensors, of attention by autograd with something planted."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.explain.one_hot import rows
from accuracy.inputs.distributions import one_hot
from accuracy.measurement.pipeline import Pipeline
from accuracy.measurement.targets import Targets
from accuracy.reference.cache import Cache
from accuracy.runtime.sharding import cut
from tests.measuring import configuration
from tests.planted import Plain
from tests.variants import schedules, skip_if_bound_to_a_kernel

SHAPE = ("inputs=one_hot", "problem.batch=1", "problem.seqlen=16", "problem.heads=4", "problem.heads_kv=2",
         "problem.head_dim=64", "problem.softmax_scale=0.2", "kernel=eager")  # fmt: skip


def measured(*words: str) -> list[tuple[Case, list]]:
    pipeline = Pipeline("test", Cache(None, 0.0))
    plans = plan(configuration(*SHAPE, *words), free_bytes=None)
    found = [(each.case, pipeline.measure(each.case)) for each in plans if each.unsupported is None]
    assert all(each.status == "ok" for _, each in found)
    return [(case, list(each.table("steps"))) for case, each in found]


@pytest.mark.stress(8, "mask")
@pytest.mark.parametrize("variant", schedules())
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_healthy_schedule_holds_each_visible_pair_once(variant: str, mask: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    words = f"variant={variant}", f"problem.mask={mask}", "dtype=[bfloat16,float16,float32,float64]"
    found = measured(*words, "world_size=[1,2,4,8]", "unusable=record")
    assert found
    assert [rows for _, rows in found if rows] == []


def of_function(fn: Callable[[Plain], dict[str, Tensor]], mask: str = "causal") -> list[tuple]:
    """(rank, tensor, finding, pairs) of what a function of all ranks' tensors returns on 4 ranks."""
    words = "variant=ring", "world_size=4", "dtype=float64", f"problem.mask={mask}"
    (planned,) = plan(configuration(*words, *SHAPE), free_bytes=None)
    case: Case = planned.case
    targets: Targets = Pipeline("test", Cache(None, 0.0)).targets(case)
    ones = torch.ones(16, 16, dtype=torch.float64)
    plain = Plain(*targets.inputs.tensors, ones if mask == "full" else ones.tril(), torch.arange(4) // 2)
    shards = {name: cut(x, "contiguous", 4) for name, x in fn(plain).items()}
    names = ("out", "lse", "dq", "dk", "dv")
    results = [tuple(shards[name][rank] if name in shards else None for name in names) for rank in range(4)]
    found = rows(case, targets, [tuple(x.transpose(1, 2) if i == 1 and x is not None else x
                                            for i, x in enumerate(each)) for each in results])  # fmt: skip
    return [(row["rank"], row["tensor"], row["finding"], row["count"]) for row in found]


def forward_with(mask: Callable[[Tensor], None], lse: bool = False) -> Callable[[Plain], dict[str, Tensor]]:
    def fn(plain: Plain) -> dict[str, Tensor]:
        mask(other := plain.mask.clone())
        found = plain.but(mask=other).results()
        return {name: x for name, x in found.items() if lse or name != "lse"}

    return fn


def backward_with(queries: range, keys: range, times: float, *names: str) -> Callable[[Plain], dict[str, Tensor]]:
    def fn(plain: Plain) -> dict[str, Tensor]:
        found = plain.results()
        part = plain.part(torch.tensor(queries), torch.tensor(keys))
        return found | {name: found[name] + times * part[name] for name in names}

    return fn


def pair(value: float, query: slice | int, key: slice | int) -> Callable[[Tensor], None]:
    return lambda mask: mask[query, key].fill_(value)


BLOCK = slice(8, 12), slice(0, 4)  # rank 2's queries, rank 0's keys
FUNCTIONS = {  # what a function does, and what must be found
    "nothing wrong": (lambda plain: plain.results(), []),
    "out only": (lambda plain: {"out": plain.results()["out"]}, []),
    "a pair masked": (forward_with(pair(0.0, 9, 3)), [(2, "out", "left out", 1)]),
    "one of two keys masked": (forward_with(pair(0.0, 1, 0)), [(0, "out", "left out", 1)]),
    "a block skipped": (forward_with(pair(0.0, *BLOCK)), [(2, "out", "left out", 16)]),
    "a block counted twice": (forward_with(pair(2.0, *BLOCK), lse=True), [(2, "out", "counted again", 16)]),
    "a later key": (forward_with(pair(1.0, 9, 10)), [(2, "out", "shown", 1)]),
    "a block skipped in the backward": (
        backward_with(range(8, 12), range(4), -1.0, "dq", "dk", "dv"),
        [(2, "dq", "left out", 16), (0, "dk", "left out", 16), (0, "dv", "left out", 16)],
    ),
    "a partial added twice": (
        backward_with(range(8, 12), range(4), 1.0, "dk"), [(0, "dk", "counted again", 16)],
    ),
    "a factor, which is no count": (lambda plain: {n: 3 * x for n, x in plain.results().items() if n != "lse"}, []),
    "another scale": (lambda plain: plain.but(scale=0.7).results(), []),
}  # fmt: skip


@pytest.mark.parametrize("what", FUNCTIONS)
def test_what_a_function_counts_is_read_off_its_tensors(what: str) -> None:
    fn, expected = FUNCTIONS[what]
    assert of_function(fn) == expected


@pytest.mark.parametrize("times", [0, 1 / 64, 16])
def test_a_gradient_of_a_wrong_delta_leaves_out_no_pair(times: float) -> None:
    """Each row has the weights 1/16: 16 times delta is dP of the one pair that has any, which is 0 then, and a small
    delta leaves nothing of the other pairs."""

    def fn(plain: Plain) -> dict[str, Tensor]:
        right, keys = plain.results(), plain.k[:, :, plain.heads].mean(1, keepdim=True)
        delta = (plain.dout * right["out"]).sum(-1, keepdim=True)
        return right | {"dq": right["dq"] + (1 - times) * delta * keys * plain.scale}

    assert of_function(fn, "full") == []


def test_other_inputs_and_more_tokens_than_a_row_tells_apart_are_not_counted() -> None:
    broken = "variant=[]", "+variant.planted.forward=tests.fault.planted:dropped_key", "world_size=4"
    broken = *broken, "+variant.planted.backward=ring", "+variant.planted.sharding=contiguous", "dtype=float32"
    assert [bool(rows) for _, rows in measured(*broken)] == [True]
    assert [bool(rows) for _, rows in measured(*broken, "inputs=[]", "inputs=gaussian")] == [False]
    assert [bool(rows) for _, rows in measured(*broken, "problem.seqlen=72")] == [False]


def test_a_row_is_a_unit_vector_and_no_two_of_a_group_are_alike() -> None:
    drawn = {name: one_hot(np.random.default_rng(0), (1, 16, heads, 64), name)[0].reshape(-1, 64)
             for name, heads in {"q": 2, "k": 1, "dout": 2}.items()}  # fmt: skip
    for x in drawn.values():
        assert (x @ x.T == np.eye(len(x))).all()
    assert not (drawn["q"] @ drawn["k"].T).any()
