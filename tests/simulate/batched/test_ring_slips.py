"""A slip in what runs a ring's ranks together would be seen: some case would differ from its coroutines."""

from types import ModuleType

import pytest

from accuracy.simulate import program
from accuracy.simulate.batched import folded, rings
from accuracy.simulate.program import build_kernel
from tests.simulate.batched.roads import CHUNKS, WIDE, Folding, cases, differing, with_slip

SLIPS = [
    (rings, "q[mine], k[theirs], v[theirs])", "q[mine], k[mine], v[mine])"),
    (rings, "arrived = k.to(wire).to(rank.dtype), v.to(wire).to(rank.dtype)", "arrived = k, v"),
    (rings, 'value.copy_(value.to(rank.place("gradient_wire")))', "pass"),
    (rings, "if size > 1 and turn < size", "if size > 1 and turn < size - 1"),
    (rings, "if size > 1 and turn < size", "if turn < size"),
    (rings, "yield () if diagonal_last else own, k, v", "yield own, k, v"),
    (rings, "_add(total, call.sources(call.ranks)", "_add(total, call.ranks"),
    (rings, "range(some.start - ranks.start, some.stop - ranks.start)", "range(0, len(some))"),
    (folded, "range(ranks.start + self.shift, ranks.stop + self.shift)", "range(ranks.start, ranks.stop)"),
    (folded, "run.ranks[begin : begin + wide]", "run.ranks[:wide]"),
    (folded, "for piece in column.pieces(high)", "for piece in column.pieces(high)[:1]"),
    (folded, "column.keys(k), column.keys(v), column.rows(out)", "column.keys(k), column.keys(k), column.rows(out)"),
    (folded, "dk.unflatten(0, (-1, column.count)), dv", "dk.unflatten(0, (-1, column.count)).flip(1), dv"),
]


def differ_with(module: ModuleType, before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether any case differs from its coroutines once a module has a slip."""
    broken = with_slip(module, before, after)
    monkeypatch.setattr(folded, "places_are_alike", lambda x: True)
    monkeypatch.setattr(broken, "places_are_alike", lambda x: True, raising=False)
    monkeypatch.setattr(*((program, "rings", broken) if module is rings else (rings, "folded", broken)))
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


@pytest.mark.parametrize("module", [rings, folded])
def test_no_slip_is_none(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ_with(module, "def ", "def ", monkeypatch)
