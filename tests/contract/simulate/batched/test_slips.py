"""A slip in what runs ranks in a batch would be seen: some case would differ from its coroutines."""

from pathlib import Path
from types import ModuleType

import pytest

from accuracy.simulate import batched
from accuracy.simulate.batched import fold, listed, llama3, operands, ring
from accuracy.simulate.program import build_kernel
from accuracy.world import simulated
from tests.contract.simulate.batched.both_ways import WIDE, Folding, cases, differing

SLIPS = [
    (operands, 'call.sources(ranks) if what == "keys" else ranks', "ranks"),
    (listed, "index_select(0, where)", "index_select(0, where.roll(1))"),
    (ring, 'arrived = rank.sent("wire", k).to(rank.dtype), rank.sent("wire", v).to(rank.dtype)', "arrived = k, v"),
    (ring, 'now.copy_(rank.sent("gradient_wire", now))', "pass"),
    (ring, "of_keys = call.sources(call.ranks)", "of_keys = call.ranks"),
    (fold, "range(ranks.start + self.shift, ranks.stop + self.shift)", "range(ranks.start, ranks.stop)"),
    (fold, "for block in run.blocks]", "for block in run.blocks[:1]]"),
    (ring, "sides, gradients, strict", "sides, [gradients[0].flip(1), *gradients[1:]], strict"),
    (llama3, "llama3.on_the_wire(rank, x, group)", "x[:, :, group.kv]"),
    (llama3, "(-1, self.count)).movedim(1, 2)", "(-1, self.count)).flip(1).movedim(1, 2)"),
    (llama3, "queries, outs, lses, strict", "queries, outs, lses[::-1], strict"),
    (simulated, "parts[senders, own]", "parts[own, senders]"),
]
PLACES = {
    ring: (batched, "ring"), fold: (ring, "fold"), operands: (ring, "operands"), listed: (operands, "listed"),
    llama3: (batched, "llama3"), simulated: (llama3, "simulated"),
}  # fmt: skip
ROUNDED = ("dtype=float16", "precision.wire=bfloat16", "kernel=eager")
ALONE = (*ROUNDED, "variant=llama3", "world_size=3", "precision.partial=bfloat16")
RINGS = (
    *ROUNDED, *WIDE, "variant.bpt_ring.query_chunk=6", "variant.bpt_ring.key_chunk=3", "variant=[bpt_ring,ring]",
    "world_size=4", "problem.seqlen=48",
    "precision.gradient_wire=bfloat16", "precision.dkv_accumulator=input",  # in 16 bits no order of a sum is another's
    "precision.ring_order=[diagonal_last,diagonal_first]", "problem.mask=[causal,full]",
)  # fmt: skip


@pytest.mark.stress(8, "module", "healthy")
@pytest.mark.parametrize(("module", "before", "after", "healthy"), [
    *((*slip, False) for slip in SLIPS), (ring, "def ", "def ", True), (llama3, "def ", "def ", True),
])  # fmt: skip
def test_a_slip_is_seen(module: ModuleType, before: str, after: str, healthy: bool, monkeypatch) -> None:
    source = Path(str(module.__file__)).read_text()
    assert before in source, f"{module.__name__} no longer says {before!r}"
    broken = ModuleType("broken")
    exec(source.replace(before, after), vars(broken))
    for each in (fold, broken):
        monkeypatch.setattr(each, "position_is_irrelevant", lambda x: True, raising=False)
    monkeypatch.setattr(*PLACES[module], broken)
    seen = any(
        differing(case, shards, Folding(build_kernel(case), limit))
        for case, shards in cases(*(ALONE if module in (llama3, simulated) else RINGS))
        for limit in (3, 24)
    )
    assert seen is not healthy
