import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from accuracy.execute.dispatch import measure
from accuracy.execute.plan import plan
from accuracy.kernel.block import flash_fold
from accuracy.simulate import batched, program
from accuracy.simulate.batched import batched_of, llama3, ring
from accuracy.simulate.program import build_kernel, simulate
from accuracy.variant.base import schedule_of
from accuracy.variant.llama3 import Llama3
from accuracy.variant.ring import Ring
from accuracy.world import simulated
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.contract.simulate.batched.both_ways import CHUNKS, MASKS, PAIRS, WIDE, Folding, cases, differing, knobs
from tests.measuring import TINY, configuration
from tests.variants import schedules


def test_every_ring_on_disk_is_batched_and_what_is_overridden_is_run_by_itself() -> None:
    class Other(Ring):
        async def backward(self, *given):
            return await super().backward(*given)

    class OtherLlama3(Llama3):
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


EVERY = (f"variant=[{','.join(sorted(set(schedules()) - {'flash_attn_split'}))}]", "world_size=[1,4]",
         "dtype=bfloat16", "problem.heads=12", "problem.heads_kv=4", "problem.batch=1", *CHUNKS)  # fmt: skip
LLAMA3 = ("variant=[llama3,llama3_ring,llama3_zigzag]", "world_size=[2,5]", "variant.llama3.heads_stride=[1,2]",
          "variant.llama3_ring.heads_stride=2", "dtype=float16", "precision.wire=bfloat16",
          "precision.partial=float32")  # fmt: skip


@pytest.mark.stress(3, "words")
@pytest.mark.parametrize(("words", "mask"), [(EVERY, "causal"), *((LLAMA3, mask) for mask in MASKS)])
def test_every_schedule_on_disk_has_the_same_bits_both_ways(words: tuple[str, ...], mask: str) -> None:
    """Also where a forward of coroutines goes before the ring's backward."""
    for case, shards in cases(*words, "kernel=eager", *MASKS[mask]):
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


ALONE = ("dtype=float16", "precision.wire=bfloat16", "kernel=eager", "variant=llama3", "world_size=3",
         "precision.partial=bfloat16")  # fmt: skip


@pytest.mark.parametrize(("module", "place", "before", "after"), [
    (llama3, (batched, "llama3"), "(-1, self.count)).movedim(1, 2)", "(-1, self.count)).flip(1).movedim(1, 2)"),
    (simulated, (llama3, "simulated"), "parts[senders, own]", "parts[own, senders]"),
    (llama3, (batched, "llama3"), "def ", "def "),
])  # fmt: skip
def test_a_slip_is_seen(module: ModuleType, place: Any, before: str, after: str, monkeypatch) -> None:
    """In folded calls of llama3, which have the same bits without one; those of rings are seen by the tests below."""
    source = Path(str(module.__file__)).read_text()
    assert before in source, f"{module.__name__} no longer says {before!r}"
    broken = ModuleType("broken")
    exec(source.replace(before, after), vars(broken))
    monkeypatch.setattr(*place, broken)
    seen = any(
        differing(case, shards, Folding(build_kernel(case), limit))
        for case, shards in cases(*ALONE)
        for limit in (3, 24)
    )
    assert seen is (before != after)


BLOCKS = ("kernel=eager", "dtype=bfloat16")


@pytest.mark.stress(5, "mask")
@pytest.mark.parametrize(("policy", "mask"), PAIRS)
def test_folded_calls_merges_and_sums_give_the_same_bits(policy: str, mask: str) -> None:
    """And those of which none is folded, of several items in the batch. 32 heads fill the CPU's vector registers: its
    sigmoid has the same bits wherever a row begins."""
    words = ("variant=[ring,zigzag,striped,bpt_ring]", *CHUNKS, *BLOCKS, *MASKS[mask], *knobs(policy))
    for case, shards in cases(*WIDE, *words, "world_size=[3,4]"):
        kernel = Folding(build_kernel(case), 2 + case.world_size % 4)
        assert differing(case, shards, kernel) == []
        assert kernel.most > 1 or case.problem.documents
    for case, shards in cases(*words, "world_size=2"):
        assert differing(case, shards) == []


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.stress(1)
@pytest.mark.parametrize("kernel", ["triton_carry", "triton_split_backward"])
def test_folded_triton_kernels_give_the_same_bits(kernel: str) -> None:
    words = ("problem.heads=2", "problem.heads_kv=1", "problem.head_dim=16", "problem.batch=1", "problem.seqlen=12")
    for case, shards in cases(*words, f"kernel={kernel}", "dtype=float16", "variant=ring", "world_size=3"):
        assert differing(case, shards) == []


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "keys"), [(5, 64), (16, 128), (16, 129), (5, 512)])
@pytest.mark.parametrize("kernel", ["flash_attn", "torch_flash", "triton_carry", "triton_split_backward"])
def test_gpu_kernels_fold_without_changing_a_bit(kernel: str, heads: int, keys: int) -> None:
    """Around the lengths at which flash-attention takes another tile of keys or cuts them into other parts."""
    if kernel == "flash_attn":
        pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    most = 0
    for size in (2, 7):
        shape = (f"problem.seqlen={keys * size}", f"problem.heads={heads}", f"problem.heads_kv=[1,{heads}]")
        grid = ("variant=[ring,bpt_ring]", f"world_size={size}", "problem.mask=[causal,full]")
        words = (*shape, *grid, "problem.batch=1", "device=cuda", "dtype=bfloat16", f"kernel={kernel}")
        for case, shards in cases(*words, "problem.head_dim=[64,256]"):
            assert differing(case, shards) == []
            built: Any = build_kernel(case)
            built = built.of_items(1) if hasattr(built, "of_items") else built
            most = max(most, built.foldable("backward", size - 1, *shards[0][:2]))
    assert most > 1


@pytest.mark.gpu
def test_gpu_calls_that_flash_attn_would_cut_otherwise_differ_and_are_not_folded(monkeypatch) -> None:
    """What `flash_fold` holds back is held back for a reason: all calls as one change bits, which flash_attn sees."""
    pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    shape = ("problem.seqlen=3584", "problem.heads=16", "problem.heads_kv=16", "problem.head_dim=128")
    grid = ("variant=ring", "world_size=7", "problem.mask=full", "dtype=bfloat16", "device=cuda", "kernel=flash_attn")
    ((case, shards),) = cases(*shape, "problem.batch=1", *grid)
    assert differing(case, shards) == []
    monkeypatch.setattr(flash_fold, "backward_calls", lambda calls, *how: [calls])
    with pytest.warns(UserWarning, match="flash-attn's backward of .* has other bits when folded"):
        assert differing(case, shards) == []
