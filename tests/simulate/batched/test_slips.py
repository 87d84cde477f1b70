"""A slip in what runs ranks in a batch would be seen: some case would differ from its coroutines."""

from types import ModuleType

import pytest

from accuracy.simulate import batched
from accuracy.simulate.batched import fold, listed, llama3, operands, ring
from accuracy.simulate.program import build_kernel
from accuracy.world import simulated
from tests.simulate.batched.both_ways import WIDE, Folding, cases, differing, with_slip

SLIPS = [
    (operands, "sources if make is KeyGroup.keys else ranks", "ranks"),
    (listed, "index_select(0, where)", "index_select(0, where.roll(1))"),
    (
        operands,
        "[items.start * group.blocks : items.stop * group.blocks]",
        "[: (items.stop - items.start) * group.blocks]",
    ),
    (operands, "(make, id(x), group.key), 2", "(make, group.key), 2"),
    (ring, 'arrived = rank.sent("wire", k).to(rank.dtype), rank.sent("wire", v).to(rank.dtype)', "arrived = k, v"),
    (ring, 'now.copy_(rank.sent("gradient_wire", now))', "pass"),
    (ring, "yield runs, *arrived, True", "yield runs, *arrived, runs is not others[-1]"),
    (ring, "own, k, v, bool(others)", "own, k, v, True"),
    (ring, "yield () if diagonal_last else own, k, v", "yield own, k, v"),
    (ring, "_add(total, sources", "_add(total, call.ranks"),
    (ring, "_add_side_by_side(total, sources", "_add_side_by_side(total, call.ranks"),
    (ring, "range(some.start - ranks.start, some.stop - ranks.start)", "range(0, len(some))"),
    (fold, "range(ranks.start + self.shift, ranks.stop + self.shift)", "range(ranks.start, ranks.stop)"),
    (fold, "self.ranks[begin : begin + self.wide]", "self.ranks[: self.wide]"),
    (fold, "for piece in group.pieces(high)", "for piece in group.pieces(high)[:1]"),
    (ring, "(*rows[:2], *keys, rows[2]", "(*rows[:2], keys[0], keys[0], rows[2]"),
    (ring, "group.joined_rows(gradients[0])", "group.joined_rows(gradients[0]).flip(2)"),
    (ring, "blocks = group.joined_keys(blocks)", "blocks = group.joined_keys(blocks).flip(2)"),
    (
        ring,
        "group.whole.key, blocks.unflatten(0, (-1, group.count))",
        "group.whole.key, blocks.unflatten(0, (-1, group.count)).flip(1)",
    ),
    (ring, "group, blocks.unflatten(0, (-1, group.count))", "group, blocks.unflatten(0, (-1, group.count)).flip(1)"),
    (fold, "group.joined_rows(out), group", "group.joined_rows(out).flip(1), group"),
    (llama3, "llama3.on_the_wire(rank, x, group)", "x[:, :, group.kv]"),
    (llama3, "by_groups(each, count)", "by_groups(ranks[0], count)"),
    (llama3, "(-1, self.count)).flatten(1, 2)", "(-1, self.count)).flip(1).flatten(1, 2)"),
    (llama3, "(-1, self.count)).movedim(1, 2)", "(-1, self.count)).flip(1).movedim(1, 2)"),
    (llama3, "for same in kv)", "for same in kv[::-1])"),
    (llama3, "zip(alike, queries, found, strict=True)", "zip(alike, queries, found[::-1], strict=True)"),
    (llama3, "given[5].unflatten(1, (self.count, -1))", "given[5].unflatten(1, (self.count, -1)).flip(1)"),
    (llama3, "queries, outs, lses, strict", "queries, outs, lses[::-1], strict"),
    (simulated, "(own[:, None] + own + 1)", "(own[:, None] + own)"),
    (simulated, "parts[senders, own]", "parts[own, senders]"),
    (llama3, "enumerate(zip(*parts, strict=True), 1)", "enumerate([*zip(*parts, strict=True)][::-1], 1)"),
]
PLACES = {
    ring: (batched, "ring"), fold: (ring, "fold"), operands: (ring, "operands"), listed: (operands, "listed"),
    llama3: (batched, "llama3"), simulated: (llama3, "simulated"),
}  # fmt: skip
ROUNDED = ("dtype=float16", "precision.wire=bfloat16", "kernel=eager")
RINGS = (
    *WIDE, "variant.bpt_ring.query_chunk=6", "variant.bpt_ring.key_chunk=3", "variant=[ring,bpt_ring]",
    "world_size=[1,4]", "problem.seqlen=48",
    "precision.gradient_wire=bfloat16", "precision.dkv_accumulator=input",  # in 16 bits no order of a sum is another's
    "precision.ring_order=[diagonal_first,diagonal_last]", "problem.mask=[full,causal]",
)  # fmt: skip


def differ_with(module: ModuleType, before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    broken = with_slip(module, before, after)
    monkeypatch.setattr(fold, "position_is_irrelevant", lambda x: True)
    monkeypatch.setattr(broken, "position_is_irrelevant", lambda x: True, raising=False)
    monkeypatch.setattr(*PLACES[module], broken)
    alone = ("variant=llama3", "world_size=3", "precision.partial=bfloat16")
    found = cases(*ROUNDED, *(alone if module in (llama3, simulated) else RINGS))
    return any(
        differing(case, shards, Folding(build_kernel(case), limit)) for limit in (3, 24) for case, shards in found
    )


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_seen(slip: tuple[ModuleType, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert differ_with(*slip, monkeypatch)


@pytest.mark.parametrize("module", PLACES)
def test_no_slip_is_none(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ_with(module, "def ", "def ", monkeypatch)
