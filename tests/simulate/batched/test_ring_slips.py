"""A slip in what runs a ring's ranks in a batch would be seen: some case would differ from its coroutines."""

from types import ModuleType

import pytest

from accuracy.simulate import batched
from accuracy.simulate.batched import fold, ring
from accuracy.simulate.program import build_kernel
from tests.simulate.batched.both_ways import CHUNKS, WIDE, Folding, cases, differing, with_slip

SLIPS = [
    (ring, "q[mine], k[theirs], v[theirs])", "q[mine], k[mine], v[mine])"),
    (ring, "arrived = k.to(wire).to(rank.dtype), v.to(wire).to(rank.dtype)", "arrived = k, v"),
    (ring, 'value.copy_(value.to(rank.place("gradient_wire")))', "pass"),
    (ring, "if size > 1 and turn < size", "if size > 1 and turn < size - 1"),
    (ring, "if size > 1 and turn < size", "if turn < size"),
    (ring, "yield () if diagonal_last else own, k, v", "yield own, k, v"),
    (ring, "_add(total, call.sources(call.ranks)", "_add(total, call.ranks"),
    (ring, "range(some.start - ranks.start, some.stop - ranks.start)", "range(0, len(some))"),
    (fold, "range(ranks.start + self.shift, ranks.stop + self.shift)", "range(ranks.start, ranks.stop)"),
    (fold, "run.ranks[begin : begin + wide]", "run.ranks[:wide]"),
    (fold, "for piece in group.pieces(high)", "for piece in group.pieces(high)[:1]"),
    (fold, "group.keys(k), group.keys(v), group.rows(out)", "group.keys(k), group.keys(k), group.rows(out)"),
    (fold, "dk.unflatten(0, (-1, group.count)), dv", "dk.unflatten(0, (-1, group.count)).flip(1), dv"),
]


def differ_with(module: ModuleType, before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether any case differs from its coroutines once a module has a slip."""
    broken = with_slip(module, before, after)
    monkeypatch.setattr(fold, "position_is_irrelevant", lambda x: True)
    monkeypatch.setattr(broken, "position_is_irrelevant", lambda x: True, raising=False)
    monkeypatch.setattr(*((batched, "ring", broken) if module is ring else (ring, "fold", broken)))
    wires = ("dtype=float16", "precision.wire=bfloat16", "precision.gradient_wire=bfloat16")
    sums = ("precision.dkv_accumulator=input",)  # in 16 bits no order of a sum is another's
    grid = ("variant=[ring,bpt_ring]", "world_size=[1,4]", "problem.seqlen=48", "kernel=eager", *CHUNKS)
    orders = ("precision.ring_order=[diagonal_first,diagonal_last]", "problem.mask=[full,causal]")
    for case, shards in cases(*WIDE, *grid, *wires, *sums, *orders):
        if differing(case, shards, Folding(build_kernel(case), 3)):
            return True
    return False


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_seen(slip: tuple[ModuleType, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert differ_with(*slip, monkeypatch)


@pytest.mark.parametrize("module", [ring, fold])
def test_no_slip_is_none(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ_with(module, "def ", "def ", monkeypatch)
