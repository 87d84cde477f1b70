"""llama3's forward for all ranks at once has, bit for bit, what its ranks give as coroutines; a slip would be seen."""

import pytest

from accuracy.simulate import batched
from accuracy.simulate.batched import forward_of
from accuracy.simulate.batched import llama3 as batched_llama3
from accuracy.simulate.program import build_kernel, simulate
from accuracy.variant import llama3
from accuracy.world.simulated import RankFailed
from tests.simulate.batched.both_ways import MASKS, Failing, cases, differing, with_slip

GRID = ("variant=[llama3,llama3_ring,llama3_zigzag]", "world_size=[1,2,5]", "kernel=eager", "unusable=record")
STRIDES = ("variant.llama3.heads_stride=[1,2]", "variant.llama3_ring.heads_stride=2")
ROUNDED = ("dtype=float16", "precision.wire=bfloat16", "precision.partial=bfloat16")


@pytest.mark.parametrize("mask", MASKS)
def test_both_ways_give_the_same_bits(mask: str) -> None:
    for dtype in (ROUNDED, ("dtype=[bfloat16,float64]",)):
        for case, shards in cases(*GRID, *STRIDES, *dtype, *MASKS[mask], "problem.heads=4", "problem.heads_kv=2"):
            assert differing(case, shards) == []


SLIPS = [
    ("llama3.on_the_wire(rank, x, group)", "x[:, :, group.kv]"),
    ("llama3.attend(mine,", "llama3.attend(ranks[0],"),
    ("for same in kv)", "for same in kv[::-1])"),
    ("zip(ranks, queries, found, strict=True)", "zip(ranks, queries, found[::-1], strict=True)"),
]


def differ_with(before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    broken = with_slip(batched_llama3, before, after)
    monkeypatch.setattr(batched, "llama3", broken)
    words = ("variant=llama3", "world_size=3", "kernel=eager", *ROUNDED)
    return any(differing(case, shards) for case, shards in cases(*words))


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_seen(slip: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert differ_with(*slip, monkeypatch)


def test_no_slip_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ_with("def ", "def ", monkeypatch)


def test_a_forward_that_is_overridden_is_run_by_itself() -> None:
    class Other(llama3.Llama3):
        async def forward(self, *given):
            return await super().forward(*given)

    assert forward_of(llama3.SCHEDULE) is batched_llama3.forward
    assert forward_of(Other()) is None


def test_an_error_says_whose_call_it_was() -> None:
    ((case, shards),) = cases("variant=llama3", "world_size=4", "problem.window=20")
    with pytest.raises(RankFailed, match=r"^rank 1: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), 1))
