"""A ring whose ranks run together has, bit for bit, what its ranks give as coroutines, and fails in their words."""

from typing import Any

import pytest
import torch

from accuracy.core import plugins
from accuracy.simulate.batched import rings
from accuracy.simulate.program import build_kernel, simulate
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.measuring import configuration
from tests.simulate.batched.roads import CHUNKS, MASKS, POLICIES, Failing, Folding, cases, differing

VARIANTS = ("ring", "zigzag", "striped", "bpt_ring", "llama3_ring", "llama3_zigzag")


def test_every_ring_on_disk_runs_together() -> None:
    for variant in VARIANTS:
        (chosen,) = configuration(f"variant={variant}").variants
        assert rings.ring_blocks(plugins.load(chosen.backward.source)) is not None


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("policy", POLICIES)
def test_both_roads_give_the_same_bits(policy: str, mask: str) -> None:
    """Worlds of 1 to 5 ranks, more than one item in the batch, multi-head and grouped."""
    knobs = [f"precision.{knob}" for knob in POLICIES[policy]]
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[1,2,5]", "dtype=[bfloat16,float64]")
    words = (*grid, *CHUNKS, *knobs, *MASKS[mask], "kernel=eager", "unusable=record", "problem.heads_kv=[2,4]")
    for case, shards in cases(*words):
        assert differing(case, shards) == []


def test_a_forward_of_coroutines_may_go_before() -> None:
    knobs = [f"precision.{knob}" for knob in POLICIES["wires"]]
    for case, shards in cases("variant=[llama3_ring,llama3_zigzag]", "world_size=[2,5]", *knobs, "dtype=bfloat16"):
        assert differing(case, shards) == []


def test_ranks_beside_each_other_are_joined_where_they_lie() -> None:
    """Any others are copied: shards apart, in another order, with gaps, of two memories."""
    whole = torch.arange(48.0).view(3, 1, 4, 4)
    beside, ranks = rings._joined(list(whole)), list(whole)
    assert beside.data_ptr() == whole.data_ptr()
    gaps = list(torch.arange(96.0).view(3, 1, 4, 8)[..., :4])
    for apart in (ranks[::-1], [*ranks[:2], ranks[2].clone()], gaps, ranks[::2], [ranks[0]] * 2):
        assert torch.equal(rings._joined(apart), torch.cat(apart))
        assert rings._joined(apart).data_ptr() not in {x.data_ptr() for x in apart}


class Writing(Folding):
    """A kernel that writes to its queries."""

    def forward(self, *tensors: torch.Tensor, **how: Any) -> Tensors:
        tensors[0].mul_(1)
        return super().forward(*tensors, **how)


def test_a_schedule_that_writes_to_its_inputs_is_refused() -> None:
    ((case, shards),) = cases("variant=ring", "world_size=3")
    with pytest.raises(RankFailed, match="the variant wrote to its inputs"):
        simulate(case, shards, Writing(build_kernel(case), 1))


def test_an_error_says_whose_call_it_was(places_alike: None) -> None:
    ((case, shards),) = cases("variant=ring", "world_size=4")
    with pytest.raises(RankFailed, match=r"^ranks 1 to 2: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), 2))
    with pytest.raises(RankFailed, match=r"^rank 1: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), 1))
