"""A ring whose ranks run together has, bit for bit, what its ranks give as coroutines; a slip in it would be seen."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy import parts, program
from accuracy.case import Case
from accuracy.grid import plan
from accuracy.kernel import torch_flash
from accuracy.kernel.base import Kernel
from accuracy.kernel.block import flash_fold
from accuracy.pipeline import Pipeline
from accuracy.program import build_kernel, simulate
from accuracy.reference.cache import Cache
from accuracy.sharding import cut
from accuracy.variant.base import Rank
from accuracy.variant.together import folded, rings
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed
from tests.measuring import TINY, configuration

VARIANTS = ("ring", "zigzag", "striped", "bpt_ring", "llama3_ring", "llama3_zigzag")
CHUNKS = ("variant.bpt_ring.query_chunk=11", "variant.bpt_ring.key_chunk=7")
MASKS = {
    "causal": (),
    "full": ("problem.mask=full",),
    "window": ("problem.window=9",),
    "full_window": ("problem.mask=full", "problem.window=9"),
    "documents": ("problem.documents=25+16+19",),
}
POLICIES = {
    "published": (),
    "previous_last": ("ring_direction=previous", "ring_order=diagonal_last"),
    "logsumexp_last": ("merge=logsumexp", "ring_order=diagonal_last", "partial=float32"),
    "double_16_bit": ("merge=double", "out_accumulator=input", "lse=input", "dq_accumulator=input"),
    "compensated": ("merge=compensated", "out_accumulator=input", "dkv_accumulator=input"),
    "wires": ("wire=bfloat16", "gradient_wire=float16", "gradient_partial=float32"),
    "wires_previous": ("wire=float32", "gradient_wire=input", "ring_direction=previous", "dkv_accumulator=float64"),
}


def cases(*words: str) -> list[tuple[Case, list[Tensors]]]:
    """Every planned case that is not declined, with its shards."""
    pipeline = Pipeline("test", Cache(None, 0.0))
    found = []
    for each in plan(configuration(*TINY, "problem.seqlen=60", *words), None):
        if each.decline is None:
            inputs = pipeline.yardsticks(each.case).inputs.tensors
            layout = each.case.variant.sharding, each.case.world_size
            found.append((each.case, list(zip(*(cut(x, *layout) for x in inputs), strict=True))))
    assert found
    return found


def one_by_one(**fields: Any) -> Rank:
    """Not the type itself: a world in which somebody looks at single ranks, so that each is a coroutine."""
    return Rank(**fields)


def differing(case: Case, shards: Sequence[Tensors], kernel: Kernel | None = None) -> list[str]:
    """Where the two roads differ in a bit: rank and place of the tensor."""
    alone = simulate(case, shards, rank_type=one_by_one).results
    folded = simulate(case, shards, kernel).results
    return [
        f"{case.variant.name} W={case.world_size} {case.dtype} rank {rank} tensor {place}"
        for rank, (mine, theirs) in enumerate(zip(alone, folded, strict=True))
        for place, (x, y) in enumerate(zip(mine, theirs, strict=True))
        if bits(x) != bits(y)
    ]


def bits(x: Tensor) -> bytes:
    """The bytes, the dtype's name and the shape: torch.equal would take -0 for 0."""
    assert x is not None
    data: bytes = x.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return f"{x.dtype} {tuple(x.shape)}".encode() + data


def test_every_ring_on_disk_runs_together() -> None:
    for variant in VARIANTS:
        (chosen,) = configuration(f"variant={variant}").variants
        assert rings.ring_blocks(parts.load(chosen.backward.source)) is not None


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("policy", POLICIES)
def test_both_roads_give_the_same_bits(policy: str, mask: str) -> None:
    """Worlds of 1 to 5 ranks, more than one item in the batch, multi-head and grouped."""
    knobs = [f"precision.{knob}" for knob in POLICIES[policy]]
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[1,2,5]", "dtype=[bfloat16,float64]")
    words = (*grid, *CHUNKS, *knobs, *MASKS[mask], "kernel=eager", "unusable=record", "problem.heads_kv=[2,4]")
    for case, shards in cases(*words):
        assert differing(case, shards) == []


def test_a_forward_of_coroutines_may_go_before() -> None:
    knobs = [f"precision.{knob}" for knob in POLICIES["wires"]]
    for case, shards in cases("variant=[llama3_ring,llama3_zigzag]", "world_size=[2,5]", *knobs, "dtype=bfloat16"):
        assert differing(case, shards) == []


@dataclass
class Folding:
    """A kernel that takes up to `limit` calls as one and works through them item by item, as if nothing were folded."""

    kernel: Kernel
    limit: int
    most: int = 0

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        return min(calls, self.limit)

    def forward(self, *tensors: Tensor, **how: Any) -> Tensors:
        return self.each(self.kernel.forward, tensors, how)

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        return self.each(self.kernel.backward, tensors, how)

    def each(self, call: Callable[..., Tensors], tensors: Sequence[Tensor], how: dict[str, Any]) -> Tensors:
        self.most = max(self.most, len(tensors[0]))
        parts = [call(*(x[item : item + 1] for x in tensors), **how) for item in range(len(tensors[0]))]
        return tuple(torch.cat(same) for same in zip(*parts, strict=True))


@pytest.fixture
def places_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA. 32 heads fill the CPU's vector registers wherever a row begins, so that merges may fold there too."""
    monkeypatch.setattr(folded, "places_are_alike", lambda x: True)


WIDE = ("problem.heads=32", "problem.heads_kv=16", "problem.head_dim=4", "problem.batch=1")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("limit", [2, 5])
def test_folded_calls_merges_and_sums_give_the_same_bits(places_alike: None, limit: int, mask: str) -> None:
    grid = ("variant=[ring,zigzag,striped,bpt_ring]", "world_size=[1,3,5]")
    for policy in POLICIES.values():
        knobs = [f"precision.{knob}" for knob in policy]
        words = (*WIDE, *CHUNKS, "kernel=eager", "dtype=bfloat16", *MASKS[mask], *knobs)
        for case, shards in cases(*grid, *words, "unusable=record"):
            kernel = Folding(build_kernel(case), limit)
            assert differing(case, shards, kernel) == []
            assert kernel.most > 1 or case.problem.documents or case.world_size == 1


@pytest.mark.parametrize("mask", ["causal", "full", "window", "documents"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
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
    kernel: Any = torch_flash.build("cpu", torch_flash.Options())
    tensors = {heads: torch.empty(1, 8, heads, 4) for heads in (1, 2)}
    assert kernel.foldable("backward", 5, tensors[1], tensors[1]) == 1
    assert kernel.foldable("backward", 5, tensors[2], tensors[2]) == 5
    assert kernel.foldable("forward", 5, tensors[2], tensors[2]) == 1


def test_ranks_beside_each_other_are_joined_where_they_lie() -> None:
    """Any others are copied: shards apart, in another order, with gaps, of two memories."""
    whole = torch.arange(48.0).view(3, 1, 4, 4)
    beside, ranks = rings._joined(list(whole)), list(whole)
    assert beside.data_ptr() == whole.data_ptr()
    gaps = list(torch.arange(96.0).view(3, 1, 4, 8)[..., :4])
    for apart in (ranks[::-1], [*ranks[:2], ranks[2].clone()], gaps, ranks[::2], [ranks[0]] * 2):
        assert torch.equal(rings._joined(apart), torch.cat(apart))
        assert rings._joined(apart).data_ptr() not in {x.data_ptr() for x in apart}


def test_a_column_repeats_no_more_keys_than_a_rank_has(places_alike: None) -> None:
    """30 keys of 60 in chunks of 5 rows: 2 blocks a call at most, of the 12 below each other."""
    chunks = ("variant.bpt.query_chunk=5", "variant.bpt.key_chunk=30", "problem.mask=full")
    ((case, shards),) = cases(*WIDE, *chunks, "variant=bpt", "world_size=1", "kernel=eager", "dtype=bfloat16")
    kernel = Folding(build_kernel(case), 12)
    assert differing(case, shards, kernel) == []
    assert kernel.most == 2


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("kernel", ["triton_carry", "triton_split_backward"])
def test_folded_triton_kernels_give_the_same_bits(places_alike: None, kernel: str) -> None:
    words = ("problem.heads=4", "problem.heads_kv=2", "problem.head_dim=16", "problem.batch=1", "problem.seqlen=24")
    for case, shards in cases(*words, f"kernel={kernel}", "dtype=float16", "variant=ring", "world_size=3"):
        assert differing(case, shards) == []


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
    source = Path(str(module.__file__)).read_text()
    assert before in source, f"{module.__name__} no longer says {before!r}"
    broken = ModuleType("broken")
    exec(source.replace(before, after), vars(broken))
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


class Writing(Folding):
    """A kernel that writes to its queries."""

    def forward(self, *tensors: Tensor, **how: Any) -> Tensors:
        tensors[0].mul_(1)
        return super().forward(*tensors, **how)


class Failing(Folding):
    """A kernel that has no full blocks."""

    def forward(self, *tensors: Tensor, **how: Any) -> Tensors:
        if not how["causal"]:
            raise ValueError("no full block")
        return super().forward(*tensors, **how)


def test_a_schedule_that_writes_to_its_inputs_is_refused() -> None:
    ((case, shards),) = cases("variant=ring", "world_size=3")
    with pytest.raises(RankFailed, match="the variant wrote to its inputs"):
        simulate(case, shards, Writing(build_kernel(case), 1))


def test_an_error_says_whose_call_it_was(places_alike: None) -> None:
    ((case, shards),) = cases("variant=ring", "world_size=4")
    with pytest.raises(RankFailed, match=r"^ranks 1 to 2: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), 2))
    with pytest.raises(RankFailed, match=r"^rank 1: ValueError: no full block"):
        simulate(case, shards, Failing(build_kernel(case), 1))


GPU_KERNELS = ("flash_attn", "torch_flash", "triton_carry", "triton_split_backward")


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [64, 128, 129, 256, 512])
@pytest.mark.parametrize("heads", [5, 16])
@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_gpu_kernels_fold_without_changing_a_bit(kernel: str, heads: int, keys: int) -> None:
    """Around the lengths at which flash-attention takes another tile of keys or cuts them into other parts."""
    most = 0
    for size in (2, 7, 16):
        shape = (f"problem.seqlen={keys * size}", f"problem.heads={heads}", f"problem.heads_kv=[1,{heads}]")
        grid = ("variant=[ring,striped,bpt_ring]", f"world_size={size}", "problem.mask=[causal,full]")
        words = (*shape, *grid, "problem.batch=1", "device=cuda", "dtype=bfloat16", f"kernel={kernel}")
        for case, shards in cases(*words, "problem.head_dim=[64,128,256]", "unusable=record"):
            assert differing(case, shards) == []
            fold: Any = build_kernel(case)
            most = max(most, fold.foldable("backward", size - 1, *shards[0][:2]))
    assert most > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["flash_attn", "torch_flash"])
def test_gpu_calls_that_flash_attention_would_cut_otherwise_do_differ(kernel: str, monkeypatch) -> None:
    """What `flash_fold` holds back is held back for a reason: all calls as one change bits."""
    words = ("problem.seqlen=3584", "problem.heads=5", "problem.heads_kv=5", "problem.head_dim=128", "problem.batch=1")
    grid = ("variant=ring", "world_size=7", "problem.mask=full", "dtype=bfloat16", "device=cuda", f"kernel={kernel}")
    ((case, shards),) = cases(*words, *grid)
    assert differing(case, shards) == []
    monkeypatch.setattr(flash_fold, "foldable", lambda way, calls, q, k: calls)
    assert differing(case, shards) != []
