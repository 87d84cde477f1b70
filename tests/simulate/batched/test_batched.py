from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.execute.dispatch import measure
from accuracy.execute.plan import plan
from accuracy.simulate.batched import backward_of, forward_of, ring
from accuracy.simulate.batched import llama3 as batched_llama3
from accuracy.simulate.program import build_kernel, simulate
from accuracy.variant import llama3
from accuracy.variant.base import schedule_of
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.measuring import TINY, configuration
from tests.simulate.batched.both_ways import CHUNKS, MASKS, PAIRS, POLICIES, Failing, Folding, cases, differing
from tests.variants import schedules

VARIANTS = ("ring", "zigzag", "striped", "bpt_ring", "llama3_ring", "llama3_zigzag")


def test_every_ring_on_disk_is_batched() -> None:
    for variant in VARIANTS:
        (chosen,) = configuration(f"variant={variant}").variants
        assert backward_of(schedule_of(chosen.backward)) is not None


def test_what_is_overridden_is_run_by_itself() -> None:
    class Other(Ring):
        async def backward(self, *given):
            return await super().backward(*given)

    class OtherLlama3(llama3.Llama3):
        async def forward(self, *given):
            return await super().forward(*given)

    assert forward_of(Other()) is not None
    assert backward_of(Other()) is None
    assert forward_of(llama3.SCHEDULE) is batched_llama3.forward
    assert forward_of(OtherLlama3()) is None


@pytest.mark.parametrize("batched", [True, False])
def test_a_world_may_run_rank_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool) -> None:
    calls = []
    original = ring.forward
    monkeypatch.setattr(ring, "forward", lambda *given: calls.append(1) or original(*given))
    words = ("variant=ring", "world_size=2", "workers=1", f"world.simulated.batched={batched}")
    chosen = configuration(*TINY, *words)
    assert list(measure(chosen, tmp_path, plan(chosen, None), None, lambda case: None)) == ["ok"]
    assert bool(calls) is batched


def test_every_schedule_on_disk_has_the_same_bits_both_ways() -> None:
    names = sorted(set(schedules()) - {"flash_attn_split"})
    words = (f"variant=[{','.join(names)}]", "world_size=[1,3,4]", "dtype=[bfloat16,float32]", "unusable=record")
    for case, shards in cases(*words, *CHUNKS, "kernel=eager", "problem.heads=12", "problem.heads_kv=4"):
        assert differing(case, shards) == []


@pytest.mark.stress(6, "mask")
@pytest.mark.parametrize(("policy", "mask"), PAIRS)
def test_both_ways_give_the_same_bits(policy: str, mask: str) -> None:
    """Worlds of 2 and 5 ranks, more than one item in the batch, multi-head and grouped."""
    knobs = [f"precision.{knob}" for knob in POLICIES[policy]]
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[2,5]", "dtype=bfloat16")
    words = (*grid, *CHUNKS, *knobs, *MASKS[mask], "kernel=eager", "unusable=record", "problem.heads_kv=[2,4]")
    for case, shards in cases(*words):
        assert differing(case, shards) == []


@pytest.mark.stress(2)
@pytest.mark.parametrize("mask", MASKS)
def test_both_ways_of_llama3_give_the_same_bits(mask: str) -> None:
    grid = ("variant=[llama3,llama3_ring,llama3_zigzag]", "world_size=[1,2,5]", "kernel=eager", "unusable=record")
    strides = ("variant.llama3.heads_stride=[1,2]", "variant.llama3_ring.heads_stride=2")
    rounded = ("dtype=float16", "precision.wire=bfloat16", "precision.partial=bfloat16")
    for dtype in (rounded, ("dtype=[bfloat16,float64]",)):
        for case, shards in cases(*grid, *strides, *dtype, *MASKS[mask]):
            assert differing(case, shards) == []


def test_a_forward_of_coroutines_may_go_before() -> None:
    knobs = [f"precision.{knob}" for knob in POLICIES["wires"]]
    for case, shards in cases("variant=[llama3_ring,llama3_zigzag]", "world_size=[2,5]", *knobs, "dtype=bfloat16"):
        assert differing(case, shards) == []


class Writing(Folding):
    def forward(self, *tensors: torch.Tensor, **how: Any) -> Tensors:
        tensors[0].mul_(1)
        return super().forward(*tensors, **how)


def test_a_schedule_that_writes_to_its_inputs_is_refused() -> None:
    ((case, shards),) = cases("variant=ring", "world_size=3")
    with pytest.raises(RankFailed, match="the variant wrote to its inputs"):
        simulate(case, shards, Writing(build_kernel(case), 1))


@pytest.mark.parametrize(
    ("words", "calls", "ranks"),
    [(("variant=ring",), 2, "ranks 1 to 2"), (("variant=ring",), 1, "rank 1"),
     (("variant=llama3", "problem.window=20"), 1, "rank 1")],
)  # fmt: skip
def test_an_error_says_whose_call_it_was(words: tuple[str, ...], calls: int, ranks: str, places_alike: None) -> None:
    ((case, shards),) = cases("world_size=4", *words)
    with pytest.raises(RankFailed, match=rf"^{ranks}: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), calls))
