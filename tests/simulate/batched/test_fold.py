import importlib.util
from typing import Any

import pytest
import torch

from accuracy.core.masks import Block
from accuracy.kernel import torch_flash
from accuracy.kernel.block import flash_fold
from accuracy.simulate import program
from accuracy.simulate.batched import fold, listed, operands
from accuracy.simulate.batched.key_group import KeyGroup, key_groups
from accuracy.simulate.program import build_kernel
from accuracy.variant.join import sigmoid
from tests.simulate.batched.both_ways import CHUNKS, MASKS, PAIRS, POLICIES, WIDE, Folding, cases, differing

GRID = ("variant.bpt_ring.query_chunk=6", "variant.bpt_ring.key_chunk=4")


@pytest.mark.stress(3)
@pytest.mark.parametrize(("policy", "mask"), PAIRS)
def test_folded_calls_merges_and_sums_give_the_same_bits(places_alike: None, policy: str, mask: str) -> None:
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[1,3,5]")
    knobs = [f"precision.{knob}" for knob in POLICIES[policy]]
    words = (*WIDE, *CHUNKS, "kernel=eager", "dtype=bfloat16", *MASKS[mask], *knobs)
    for case, shards in cases(*grid, *words, "unusable=record"):
        kernel = Folding(build_kernel(case), 2 + case.world_size % 4)
        assert differing(case, shards, kernel) == []
        assert kernel.most > 1 or case.problem.documents or case.world_size == 1


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


def test_a_group_repeats_no_more_keys_than_a_rank_has(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 keys of 60 in chunks of 5 rows: 2 blocks a call at most, of the 12 below each other, without room for more."""
    monkeypatch.setattr(operands, "COPIED_ELEMENTS", 1)
    chunks = ("variant.bpt.query_chunk=5", "variant.bpt.key_chunk=30", "problem.mask=full")
    ((case, shards),) = cases(*WIDE, *chunks, "variant=bpt", "world_size=1", "kernel=eager", "dtype=bfloat16")
    kernel = Folding(build_kernel(case), 12)
    assert differing(case, shards, kernel) == []
    assert kernel.most == 2


def test_a_grid_of_blocks_is_one_call(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """15 tokens a rank in 3 chunks of queries and 5 of keys, of 3 ranks at once; with less room one below the other."""
    chunks = ("variant.bpt_ring.query_chunk=5", "variant.bpt_ring.key_chunk=3")
    for mask, most in (("full", 60), ("causal", 45)):
        words = (*WIDE, *chunks, "variant=bpt_ring", "world_size=4", f"problem.mask={mask}", "kernel=eager")
        ((case, shards),) = cases(*words, "dtype=bfloat16")
        kernel = Folding(build_kernel(case), 60)
        assert differing(case, shards, kernel) == []
        assert kernel.most == most
    for module in (fold, operands):
        monkeypatch.setattr(module, "COPIED_ELEMENTS", 1)
    assert differing(case, shards, again := Folding(build_kernel(case), 60)) == []
    assert again.most == 9


class Listed:
    """In place of the GPU's one pass."""

    def __init__(self, fault: int = 1) -> None:
        self.merged, self.added, self.fault = 0, 0, fault

    def merges(self, *tensors: torch.Tensor) -> bool:
        return True

    adds = merges

    def merge_listed(
        self, out: torch.Tensor, lse: torch.Tensor, outs: torch.Tensor, lses: torch.Tensor, places: torch.Tensor,
        begun: torch.Tensor,
    ) -> None:  # fmt: skip
        self.merged += 1
        lses = lses.transpose(1, 2).reshape(*outs.shape[:3], 1)
        for unit, row in enumerate(places.tolist()):
            filled = bool(begun[unit])
            for place in (each for each in row[:: self.fault] if each >= 0):
                block = outs[place].float(), lses[place]
                out[unit], lse[unit] = sigmoid(out[unit], lse[unit], *block) if filled else block
                filled = True

    def add_listed(self, total: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor) -> None:
        self.added += 1
        for unit, row in enumerate(places.tolist()):
            for place in (each for each in row[:: self.fault] if each >= 0):
                total[unit] += blocks[place]


@pytest.mark.parametrize(
    ("variant", "merged", "added"), [("ring", 6, 24), ("zigzag", 8, 39), ("striped", 8, 39), ("bpt_ring", 16, 63)]
)
def test_merges_and_sums_of_several_steps_are_one_pass(
    places_alike: None, monkeypatch: pytest.MonkeyPatch, variant: str, merged: int, added: int
) -> None:
    """In the order of the steps: in another, a bit is another. Wires round at each step; rows are reached in parts."""
    monkeypatch.setattr(fold, "on_gpu", lambda x: True)
    words = (*WIDE, f"variant={variant}", "world_size=5", "dtype=float32", "kernel=eager")
    words = (*words, *GRID) if variant == "bpt_ring" else words
    found = cases(*words, "problem.mask=[causal,full]", "precision.gradient_wire=bfloat16")
    found += cases(*words, "precision.ring_order=diagonal_last")
    for fault in (1, -1):
        monkeypatch.setattr(listed.available, "one_pass", lambda: kernel)  # noqa: B023
        kernel = Listed(fault)
        assert any(differing(case, shards, Folding(build_kernel(case), 999)) for case, shards in found) is (fault < 0)
        assert (kernel.merged, kernel.added) == (merged, added) or fault < 0


def test_rows_that_are_reached_in_parts_are_one_pass(places_alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units smaller than a block, of which the kernel gives tensors of another layout; sums that no block begins."""
    monkeypatch.setattr(fold, "on_gpu", lambda x: True)
    monkeypatch.setattr(listed.available, "one_pass", lambda: kernel)
    words = (*WIDE, "variant=ring", "world_size=5", "dtype=bfloat16", "kernel=[eager,torch_math]", "problem.batch=2")
    kernel = Listed()
    for case, shards in cases(*words, "problem.window=5", "precision.ring_order=[diagonal_first,diagonal_last]"):
        assert differing(case, shards, Folding(build_kernel(case), 999)) == []
    assert kernel.merged
    assert kernel.added


def test_calls_out_of_order_are_no_pass() -> None:
    """A rank that goes back to the first lot's blocks after the second's: its rows are in no order, its keys are."""
    one, other = (KeyGroup(Block(slice(0, 4), slice(key, key + 2), causal=False)) for key in (0, 2))
    groups = (one, one, other, other, one)
    calls = [fold.Call(group, range(1, 3), -1, wide) for wide, group in enumerate(groups)]
    rows, keys = (listed.Side(side, 3, 1, 4) for side in (False, True))
    assert listed.in_order(tuple(calls[:4]), (tuple(calls[:2]), tuple(calls[2:4])), rows) == (0, 1)
    assert listed.in_order(tuple(calls[:4]), (tuple(calls[2:4]), tuple(calls[:2])), rows) == (1, 0)
    split = (*calls[:2], calls[4]), tuple(calls[2:4])
    assert listed.in_order(tuple(calls), split, rows) is None
    assert listed.in_order(tuple(calls), split, keys) is not None


def test_a_group_moves_past_others_that_have_neither_its_rows_nor_its_keys() -> None:
    """Two chunks of queries and four of keys on the diagonal: what sees the first two in full comes after both."""
    blocks = [Block(slice(0, 4), slice(0, 2), causal=True), Block(slice(0, 4), slice(2, 4), causal=True)]
    below = [Block(slice(4, 8), slice(key, key + 2), causal=key > 3) for key in (0, 2, 4, 6)]
    assert [each.whole for each in key_groups([*blocks, *below])] == [
        *blocks, Block(slice(4, 8), slice(0, 4), causal=False), *below[2:],
    ]  # fmt: skip


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
            fold: Any = build_kernel(case)
            most = max(most, fold.foldable("backward", size - 1, *shards[0][:2]))
    assert most > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["flash_attn", "torch_flash"])
def test_gpu_calls_that_flash_attention_would_cut_otherwise_do_differ(kernel: str, monkeypatch) -> None:
    """What `flash_fold` holds back is held back for a reason: all calls as one change bits, which flash_attn sees."""
    if kernel == "flash_attn":
        pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    words = (
        "problem.seqlen=3584",
        "problem.heads=16",
        "problem.heads_kv=16",
        "problem.head_dim=128",
        "problem.batch=1",
    )
    grid = ("variant=ring", "world_size=7", "problem.mask=full", "dtype=bfloat16", "device=cuda", f"kernel={kernel}")
    ((case, shards),) = cases(*words, *grid)
    assert differing(case, shards) == []
    monkeypatch.setattr(flash_fold, "foldable", lambda way, calls, q, k, **how: calls)
    monkeypatch.setattr(flash_fold, "backward_calls", lambda calls, *how: [calls])
    if kernel == "torch_flash":
        assert differing(case, shards) != []
        return
    with pytest.warns(UserWarning, match="flash-attn's backward of .* has other bits when folded"):
        assert differing(case, shards) == []
