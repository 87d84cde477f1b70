import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.execute.dispatch import measure
from accuracy.execute.plan import plan
from accuracy.kernel import torch_flash
from accuracy.kernel.block import flash_fold
from accuracy.simulate import fold, program
from accuracy.simulate.program import build_kernel, simulate
from accuracy.world import simulated
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.measuring import TINY, configuration
from tests.simulate.both_ways import CHUNKS, MASKS, PAIRS, POLICIES, WIDE, Failing, Folding, cases, differing
from tests.variants import schedules


@pytest.mark.stress(3)
@pytest.mark.parametrize(("policy", "mask"), PAIRS)
def test_folded_calls_merges_and_sums_give_the_same_bits(places_alike: None, policy: str, mask: str) -> None:
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[3,5]")
    knobs = [f"precision.{knob}" for knob in POLICIES[policy]]
    words = (*WIDE, *CHUNKS, "kernel=eager", "dtype=bfloat16", *MASKS[mask], *knobs)
    for case, shards in cases(*grid, *words, "unusable=record"):
        kernel = Folding(build_kernel(case), 2 + case.world_size % 4)
        assert differing(case, shards, kernel) == []
        assert kernel.most > 1 or case.problem.documents


def test_every_schedule_on_disk_has_the_same_bits_folded(places_alike: None) -> None:
    names = sorted(set(schedules()) - {"flash_attn_split"})
    words = (f"variant=[{','.join(names)}]", "world_size=4", "dtype=bfloat16", "unusable=record", "problem.seqlen=64")
    for case, shards in cases(*words, *CHUNKS, "kernel=eager", *WIDE):
        assert differing(case, shards, Folding(build_kernel(case), 99)) == []


@pytest.mark.stress(1)
@pytest.mark.parametrize(
    ("dtype", "mask"), [("bfloat16", "causal"), ("float16", "full"), ("float32", "window"), ("float64", "documents")]
)
def test_the_cpu_s_flash_backward_folds_without_changing_a_bit(dtype: str, mask: str) -> None:
    """Blocks shorter and longer than the operator's tiles, a batch of several, multi-head, grouped, one group."""
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[2,4]", "problem.heads_kv=[1,2,4]", *CHUNKS)
    lengths = "problem.seqlen=60" if mask == "documents" else "problem.seqlen=[24,304]"
    for case, shards in cases(*grid, "kernel=torch_flash", f"dtype={dtype}", lengths, *MASKS[mask], "unusable=record"):
        assert differing(case, shards) == []


def test_on_the_cpu_backwards_fold_and_forwards_which_merge_do_not() -> None:
    ((case, shards),) = cases("variant=ring", "world_size=4", "problem.mask=full", "kernel=eager", "problem.batch=1")
    kernel = Folding(build_kernel(case), 4)
    work = program.Work(case, kernel, shards)
    forwarded = program.forward(work)
    assert kernel.most == 1
    program.backward(work, forwarded)
    assert kernel.most == 4


def test_a_single_head_s_backward_stays_a_call() -> None:
    """torch gives its products all threads then, and many threads may add in another order than one."""
    kernel: Any = torch_flash.KERNEL().build("cpu")
    tensors = {heads: torch.empty(1, 8, heads, 4) for heads in (1, 2)}
    assert kernel.foldable("backward", 5, tensors[1], tensors[1]) == 1
    assert kernel.foldable("backward", 5, tensors[2], tensors[2]) == 5
    assert kernel.foldable("forward", 5, tensors[2], tensors[2]) == 1


def test_a_call_has_no_more_elements_than_may_be_copied(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ((case, shards),) = cases("variant=ring", "world_size=4", "problem.mask=full", "kernel=eager", "problem.batch=1")
    monkeypatch.setattr(fold, "COPIED_ELEMENTS", 2 * shards[0][0].numel())
    kernel = Folding(build_kernel(case), 4)
    assert differing(case, shards, kernel) == []
    assert kernel.most == 2


@pytest.mark.parametrize("batched", [True, False])
def test_a_world_may_run_rank_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool) -> None:
    folds = []
    monkeypatch.setattr(program, "Fold", lambda *given: folds.append(given) or fold.Fold(*given))
    words = ("variant=ring", "world_size=2", "workers=1", "kernel=torch_flash", f"world.simulated.batched={batched}")
    chosen = configuration(*TINY, *words)
    assert list(measure(chosen, tmp_path, plan(chosen, None), None, lambda case: None)) == ["ok"]
    assert bool(folds) is batched


def test_ranks_are_not_folded_that_must_be_looked_at_one_by_one() -> None:
    """In poisoned memory, with a mask or a length of its own each, when watched, on a kernel that does not fold."""
    ((case, shards),) = cases("variant=ring", "world_size=3", "kernel=torch_flash")
    ((uneven, _),) = cases("variant=ring", "world_size=3", "variant.ring.sharding=24+20+16", "kernel=torch_flash")
    work = program.Work(case, build_kernel(case), shards)
    watched = type("Watched", (program.Rank,), {})
    assert program._folds(work)
    for other in (
        replace(work, case=replace(case, reruns=replace(case.reruns, poison=True))),
        replace(work, case=replace(case, reruns=replace(case.reruns, unwaited=True))),
        replace(work, case=replace(case, problem=replace(case.problem, dropout=0.1))),
        replace(work, case=uneven), replace(work, rank_type=watched), replace(work, kernel=object()),
    ):  # fmt: skip
        assert not program._folds(other)


def test_a_sum_that_is_read_without_meeting_is_complete(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(rank: fold.FoldedRank) -> None:
        return None

    monkeypatch.setattr(fold.FoldedRank, "meet", at_once)
    for case, shards in cases(*WIDE, "variant=[ring,zigzag]", "world_size=3", "kernel=eager", "dtype=bfloat16"):
        assert differing(case, shards, Folding(build_kernel(case), 9)) == []


class Writing(Folding):
    def forward(self, *tensors: Tensor, **how: Any) -> Tensors:
        tensors[0].mul_(1)
        return super().forward(*tensors, **how)


def test_a_schedule_that_writes_to_its_inputs_is_refused() -> None:
    ((case, shards),) = cases("variant=ring", "world_size=3")
    with pytest.raises(RankFailed, match="the variant wrote to its inputs"):
        simulate(case, shards, Writing(build_kernel(case), 1))


def test_a_sum_that_is_added_to_on_its_way_is_caught(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    send = simulated.SimulatedWorld.exchange

    def send_and_add(world: simulated.SimulatedWorld, tensors: Any, *ends: int) -> Any:
        transfer = send(world, tensors, *ends)
        for total in sums:
            total.add(slice(0, 1), torch.ones(1, 1, *total.like.shape[2:]))
            total.fold.join()
        return transfer

    sums, original = [], fold.FoldedRank.accumulator
    monkeypatch.setattr(simulated.SimulatedWorld, "exchange", send_and_add)
    monkeypatch.setattr(fold.FoldedRank, "accumulator", lambda *given: sums.append(original(*given)) or sums[-1])
    ((case, shards),) = cases(*WIDE, "variant=ring", "world_size=3", "kernel=eager", "dtype=bfloat16")
    with pytest.raises(RankFailed, match="wrote to a tensor on its way"):
        simulate(case, shards, Folding(build_kernel(case), 9))


@pytest.mark.parametrize(("words", "calls", "ranks"), [
    (("variant=ring",), 3, "ranks 1 to 3"), (("variant=ring",), 1, "rank 1"),
    (("variant=llama3", "problem.window=20"), 1, "rank 3"),
])  # fmt: skip
def test_an_error_says_whose_call_it_was(words: tuple[str, ...], calls: int, ranks: str, places_alike: None) -> None:
    ((case, shards),) = cases("world_size=4", *words)
    with pytest.raises(RankFailed, match=rf"^{ranks}: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), calls))


def test_tensors_at_equal_distances_are_not_copied() -> None:
    whole = torch.arange(24.0).view(4, 1, 3, 2)
    cases: tuple[tuple[list[Tensor], bool], ...] = (
        (list(whole.unbind()), True), (list(whole.unbind())[::2], True), ([x[:, 1:] for x in whole], True),
        (list(whole.unbind())[::-1], False), ([whole[0], whole[1], whole[3]], False), ([whole[0], whole[0]], False),
        ([whole[0], whole[1].clone()], False),
    )  # fmt: skip
    for tensors, stay in cases:
        found = fold.stacked(tensors)
        assert torch.equal(found, torch.cat(tensors))
        assert (found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()) is stay


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.stress(1)
@pytest.mark.parametrize("kernel", ["triton_carry", "triton_split_backward"])
def test_folded_triton_kernels_give_the_same_bits(places_alike: None, kernel: str) -> None:
    words = ("problem.heads=2", "problem.heads_kv=1", "problem.head_dim=16", "problem.batch=1", "problem.seqlen=12")
    for case, shards in cases(*words, f"kernel={kernel}", "dtype=float16", "variant=ring", "world_size=3"):
        assert differing(case, shards) == []


GPU_KERNELS = ("flash_attn", "torch_flash", "triton_carry", "triton_split_backward")


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [64, 128, 129, 256, 512])
@pytest.mark.parametrize("heads", [5, 16])
@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_gpu_kernels_fold_without_changing_a_bit(kernel: str, heads: int, keys: int) -> None:
    """Around the lengths at which flash-attention takes another tile of keys or cuts them into other parts."""
    if kernel == "flash_attn":
        pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    most = 0
    for size in (2, 7, 16):
        shape = (f"problem.seqlen={keys * size}", f"problem.heads={heads}", f"problem.heads_kv=[1,{heads}]")
        grid = ("variant=[ring,striped,bpt_ring,llama3_ring]", f"world_size={size}", "problem.mask=[causal,full]")
        words = (*shape, *grid, "problem.batch=1", "device=cuda", "dtype=bfloat16", f"kernel={kernel}")
        for case, shards in cases(*words, "problem.head_dim=[64,128,256]", "unusable=record"):
            assert differing(case, shards) == []
            kernel_of_case: Any = build_kernel(case)
            most = max(most, kernel_of_case.foldable("backward", size - 1, *shards[0][:2]))
    assert most > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["flash_attn", "torch_flash"])
def test_gpu_calls_that_flash_attention_would_cut_otherwise_do_differ(kernel: str, monkeypatch) -> None:
    """What `flash_fold` holds back is held back for a reason: all calls as one change bits, which flash_attn sees."""
    if kernel == "flash_attn":
        pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    heads = ("problem.heads=16", "problem.heads_kv=16", "problem.head_dim=128", "problem.batch=1")
    grid = ("variant=ring", "world_size=7", "problem.mask=full", "dtype=bfloat16", "device=cuda", f"kernel={kernel}")
    ((case, shards),) = cases("problem.seqlen=3584", *heads, *grid)
    assert differing(case, shards) == []
    monkeypatch.setattr(flash_fold, "foldable", lambda way, calls, q, k, **how: calls)
    monkeypatch.setattr(flash_fold, "backward_calls", lambda calls, *how: [calls])
    if kernel == "torch_flash":
        assert differing(case, shards) != []
        return
    with pytest.warns(UserWarning, match="flash-attn's backward of .* has other bits when folded"):
        assert differing(case, shards) == []
