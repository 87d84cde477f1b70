from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.execute.dispatch import measure
from accuracy.execute.plan import plan
from accuracy.simulate import program
from accuracy.simulate.batched import batched_of, ring
from accuracy.simulate.program import build_kernel, simulate
from accuracy.variant import llama3
from accuracy.variant.base import schedule_of
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.contract.simulate.batched.both_ways import CHUNKS, MASKS, Folding, cases, differing
from tests.measuring import TINY, configuration
from tests.variants import schedules


def test_every_ring_on_disk_is_batched_and_what_is_overridden_is_run_by_itself() -> None:
    class Other(Ring):
        async def backward(self, *given):
            return await super().backward(*given)

    class OtherLlama3(llama3.Llama3):
        async def forward(self, *given):
            return await super().forward(*given)

    for variant in ("ring", "zigzag", "striped", "bpt_ring", "llama3_ring", "llama3_zigzag"):
        (chosen,) = configuration(f"variant={variant}").variants
        assert batched_of(schedule_of(chosen.backward), "backward") is not None
    assert batched_of(Other(), "forward") is not None
    assert batched_of(Other(), "backward") is None
    assert batched_of(OtherLlama3(), "backward") is not None
    assert batched_of(OtherLlama3(), "forward") is None


@pytest.mark.parametrize("batched", [True, False])
def test_a_world_may_run_rank_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool) -> None:
    calls, original = [], ring.forward
    monkeypatch.setattr(program, "BATCHED_DEVICES", ("cpu",))
    monkeypatch.setattr(ring, "forward", lambda *given: calls.append(1) or original(*given))
    words = "variant=ring", "kernel=eager", "world_size=2", "workers=1", f"world.simulated.batched={batched}"
    chosen = configuration(*TINY, *words)
    assert list(measure(chosen, tmp_path, plan(chosen, None), None, lambda case: None)) == ["ok"]
    assert bool(calls) is batched


def test_every_schedule_on_disk_has_the_same_bits_both_ways() -> None:
    names = ",".join(sorted(set(schedules()) - {"flash_attn_split"}))
    words = (f"variant=[{names}]", "world_size=[1,4]", "dtype=bfloat16", "kernel=eager", "problem.heads=12")
    for case, shards in cases(*words, *CHUNKS, "problem.heads_kv=4", "problem.batch=1"):
        assert differing(case, shards) == []


@pytest.mark.stress(2)
@pytest.mark.parametrize("mask", MASKS)
def test_both_ways_of_llama3_give_the_same_bits(mask: str) -> None:
    """Also where a forward of coroutines goes before the ring's backward."""
    grid = ("variant=[llama3,llama3_ring,llama3_zigzag]", "world_size=[2,5]", "kernel=eager", *MASKS[mask])
    strides = ("variant.llama3.heads_stride=[1,2]", "variant.llama3_ring.heads_stride=2")
    for case, shards in cases(*grid, *strides, "dtype=float16", "precision.wire=bfloat16", "precision.partial=float32"):
        assert differing(case, shards) == []


class Writing(Folding):
    def forward(self, *tensors: torch.Tensor, **how: Any) -> Tensors:
        tensors[0].mul_(1)
        return super().forward(*tensors, **how)


class Failing(Folding):
    def forward(self, *tensors: torch.Tensor, **how: Any) -> Tensors:
        if not how["causal"]:
            raise ValueError("no full block")
        return super().forward(*tensors, **how)


@pytest.mark.parametrize(("kernel", "words", "calls", "message"), [
    (Writing, ("variant=ring",), 1, "the variant wrote to its inputs"),
    (Failing, ("variant=ring",), 2, "^ranks 1 to 2: ValueError: no full block"),
    (Failing, ("variant=ring",), 1, "^rank 1: ValueError: no full block"),
    (Failing, ("variant=llama3", "problem.window=20"), 1, "^rank 3: ValueError: no full block"),
])  # fmt: skip
def test_an_error_says_what_it_was_and_whose_call(
    kernel: type[Folding], words: tuple[str, ...], calls: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "BATCHED_DEVICES", ("cpu",))
    ((case, shards),) = cases("world_size=4", *words)
    with pytest.raises(RankFailed, match=message):
        simulate(case, shards, kernel=kernel(build_kernel(case), calls))
