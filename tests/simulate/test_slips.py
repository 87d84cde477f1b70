"""A slip in what folds ranks would be seen: some case would differ from its ranks one by one."""

from types import ModuleType

import pytest

from accuracy.simulate import fold, program
from accuracy.simulate.program import build_kernel
from accuracy.world import simulated
from accuracy.world.simulated import RankFailed
from tests.simulate.both_ways import WIDE, Folding, cases, differing, with_slip

SLIPS = (
    ("(call.tensors for call in group)", "(group[-1].tensors for call in group)"),
    (", *self.how.items()", ""),
    ("zip(group, zip(", "zip(group[::-1], zip("),
    ("for join in reversed(joins)}", "for join in joins}"),
    ("place - 1 not in placed", "False"),
    ("slice(first * batch, (first + len(run)) * batch)", "slice(0, len(run) * batch)"),
    ("self.seen[:] = part.seen", "pass"),
    ("block.query.stop, bytes(self.seen)", "block.query.stop"),
    ("target.waits = True", "pass"),
    ("held: Any = self.memory if self.total is None else self.total", "held: Any = self.memory"),
    ("return here.storage_offset() // here.numel() if there else None", "return here.storage_offset() // here.numel()"),
)


def cases_of_rings() -> list[tuple]:
    """In 16 bits no order of a sum is another's. Ranks see different keys, and rows in parts."""
    words = ("dtype=float16", "kernel=eager", "precision.dkv_accumulator=input", "world_size=4", *WIDE)
    rings = cases(*words, "variant=[ring,zigzag]", "problem.seqlen=48", "precision.gradient_wire=input")
    last = cases(*words, "variant=zigzag", "problem.seqlen=48", "precision.ring_order=diagonal_last")
    chunks = cases(*words, "variant=bpt_ring", "variant.bpt_ring.query_chunk=6", "variant.bpt_ring.key_chunk=3")
    windows = cases(*words, "variant=striped", "problem.window=9", "problem.mask=full")
    return rings + last + chunks + windows + cases(*words, "variant=ring", "problem.documents=20+20+20")


def differ_with(broken: ModuleType, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(broken, "position_is_irrelevant", lambda x: True)
    for name in ("Fold", "FoldedRank"):
        monkeypatch.setattr(program, name, getattr(broken, name))
    return any(failing(case, shards, limit) for limit in (3, 24) for case, shards in cases_of_rings())


def failing(case, shards, limit: int) -> bool:
    try:
        return differing(case, shards, Folding(build_kernel(case), limit)) != []
    except RankFailed:
        return True


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_seen(slip: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert differ_with(with_slip(fold, *slip), monkeypatch)


def test_no_slip_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ_with(with_slip(fold, "def ", "def "), monkeypatch)


@pytest.mark.parametrize("slip", [("(own[:, None] + own + 1)", "(own[:, None] + own)"),
                                  ("parts[senders, own]", "parts[own, senders]")])  # fmt: skip
def test_a_slip_in_the_order_of_a_scattered_sum_is_seen(slip: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the slices that ranks scatter: against the sum as `World.reduce_scatter` states it."""
    words = ("variant=llama3", "world_size=3", "dtype=float16", "kernel=eager")
    ((case, shards),) = cases(*words)
    before = program.simulate(case, shards).results
    monkeypatch.setattr(simulated, "by_hop", with_slip(simulated, *slip).by_hop)
    after = program.simulate(case, shards).results
    pairs = zip(sum(before, ()), sum(after, ()), strict=True)
    assert any((x != y).any() for x, y in pairs)
