import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accuracy.kernel.block import flash_fold
from accuracy.simulate.batched import fold, listed
from accuracy.simulate.program import build_kernel
from accuracy.variant.join import sigmoid
from tests.contract.simulate.batched.both_ways import CHUNKS, MASKS, PAIRS, WIDE, Folding, cases, differing, knobs

BLOCKS = ("kernel=eager", "dtype=bfloat16")


@pytest.fixture
def places_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA. 32 heads fill the CPU's vector registers wherever a row begins, so that merges may fold there too."""
    monkeypatch.setattr(fold, "position_is_irrelevant", lambda x: True)


@pytest.mark.stress(5, "mask")
@pytest.mark.parametrize(("policy", "mask"), PAIRS)
def test_folded_calls_merges_and_sums_give_the_same_bits(places_alike: None, policy: str, mask: str) -> None:
    """And those of which none is folded, of several items in the batch."""
    words = ("variant=[ring,zigzag,striped,bpt_ring]", *CHUNKS, *BLOCKS, *MASKS[mask], *knobs(policy))
    for case, shards in cases(*WIDE, *words, "world_size=[3,4]"):
        kernel = Folding(build_kernel(case), 2 + case.world_size % 4)
        assert differing(case, shards, kernel) == []
        assert kernel.most > 1 or case.problem.documents
    for case, shards in cases(*words, "world_size=2"):
        assert differing(case, shards) == []


class Listed(SimpleNamespace):
    """In place of the GPU's one pass; step -1 takes the blocks of a unit backwards."""

    def merges(self, *tensors: torch.Tensor) -> bool:
        return True

    adds = merges

    def merge_listed(self, out, lse, outs, lses, places: torch.Tensor, begun: torch.Tensor) -> None:
        self.merged += 1
        lses = lses.transpose(1, 2).reshape(*outs.shape[:3], 1)
        for unit, row in enumerate(places.tolist()):
            filled = bool(begun[unit])
            for place in (each for each in row[:: self.step] if each >= 0):
                block = outs[place].float(), lses[place]
                out[unit], lse[unit] = sigmoid(out[unit], lse[unit], *block) if filled else block
                filled = True

    def add_listed(self, total: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor) -> None:
        self.added += 1
        for unit, row in enumerate(places.tolist()):
            for place in (each for each in row[:: self.step] if each >= 0):
                total[unit] += blocks[place]


GRID = ("variant.bpt_ring.query_chunk=6", "variant.bpt_ring.key_chunk=4", "variant=bpt_ring")


@pytest.mark.parametrize(("words", "passes"), [
    (("variant=ring", "precision.gradient_wire=bfloat16"), (2, 12)),  # wires round at each step
    (("variant=zigzag", "precision.ring_order=diagonal_last"), (3, 3)),
    ((*GRID, "problem.mask=full"), (2, 6)),
    # units smaller than a block, of which the kernel gives tensors of another layout; sums that no block begins
    (("variant=ring", "kernel=torch_math", "problem.batch=2", "problem.window=5"), (2, 3)),
])  # fmt: skip
def test_merges_and_sums_of_several_steps_are_one_pass(places_alike: None, monkeypatch, words, passes) -> None:
    """In the order of the steps: in another, a bit is another, but for the few blocks of a window."""
    monkeypatch.setattr(fold, "on_gpu", lambda x: True)
    ((case, shards),) = cases(*WIDE, "world_size=5", "dtype=float32", "kernel=eager", *words)
    for step in (1, -1):
        kernel = Listed(step=step, merged=0, added=0)
        monkeypatch.setattr(listed.available, "one_pass", lambda kernel=kernel: kernel)
        found = differing(case, shards, Folding(build_kernel(case), 999))
        assert (found == []) is (step == 1 or "problem.window=5" in words)
        assert step == -1 or (kernel.merged, kernel.added) == passes


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.stress(1)
@pytest.mark.parametrize("kernel", ["triton_carry", "triton_split_backward"])
def test_folded_triton_kernels_give_the_same_bits(places_alike: None, kernel: str) -> None:
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
@pytest.mark.parametrize("kernel", ["flash_attn", "torch_flash"])
def test_gpu_calls_that_flash_attention_would_cut_otherwise_do_differ(kernel: str, monkeypatch) -> None:
    """What `flash_fold` holds back is held back for a reason: all calls as one change bits, which flash_attn sees."""
    if kernel == "flash_attn":
        pytest.importorskip("flash_attn", reason="needs attention-accuracy[flash]")
    shape = ("problem.seqlen=3584", "problem.heads=16", "problem.heads_kv=16", "problem.head_dim=128")
    grid = ("variant=ring", "world_size=7", "problem.mask=full", "dtype=bfloat16", "device=cuda", f"kernel={kernel}")
    ((case, shards),) = cases(*shape, "problem.batch=1", *grid)
    assert differing(case, shards) == []
    monkeypatch.setattr(flash_fold, "foldable", lambda way, calls, q, k, **how: calls)
    monkeypatch.setattr(flash_fold, "backward_calls", lambda calls, *how: [calls])
    if kernel == "torch_flash":
        assert differing(case, shards) != []
        return
    with pytest.warns(UserWarning, match="flash-attn's backward of .* has other bits when folded"):
        assert differing(case, shards) == []
