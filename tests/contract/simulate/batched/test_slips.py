"""A slip in what runs ranks in a batch would be seen: some case would differ from its coroutines."""

from pathlib import Path
from types import ModuleType

import pytest

from accuracy.simulate import batched
from accuracy.simulate.batched import fold, llama3, ring
from accuracy.simulate.program import build_kernel
from accuracy.world import simulated
from tests.contract.simulate.batched.both_ways import WIDE, Folding, cases, differing

SLIPS = [
    (fold, 'call.sources if what == "keys" else call.ranks', "call.ranks"),
    (fold, "range(self.ranks.start + self.shift, self.ranks.stop + self.shift)", "self.ranks"),
    (fold, "shift, found = work[some.start]", "shift, found = work[some.start][0], work[some.start][1][:1]"),
    (ring, 'arrived = rank.sent("wire", k).to(rank.dtype), rank.sent("wire", v).to(rank.dtype)', "arrived = k, v"),
    (ring, 'now.copy_(rank.sent("gradient_wire", now))', "pass"),
    (ring, "dk.add(call.sources,", "dk.add(call.ranks,"),
    (llama3, "(-1, self.count)).movedim(1, 2)", "(-1, self.count)).flip(1).movedim(1, 2)"),
    (simulated, "parts[senders, own]", "parts[own, senders]"),
]
PLACES = {
    ring: (batched, "ring"), fold: (ring, "fold"), llama3: (batched, "llama3"), simulated: (llama3, "simulated"),
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
    monkeypatch.setattr(*PLACES[module], broken)
    if module is fold:
        for name in ("RankPartials", "RankSums"):
            monkeypatch.setattr(ring, name, getattr(broken, name))
    seen = any(
        differing(case, shards, Folding(build_kernel(case), limit))
        for case, shards in cases(*(ALONE if module in (llama3, simulated) else RINGS))
        for limit in (3, 24)
    )
    assert seen is not healthy
