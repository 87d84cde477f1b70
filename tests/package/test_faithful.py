from pathlib import Path

import pytest
import torch

from accuracy.core.case import Case
from accuracy.package import installed
from tests.package.driving import case_of, results_of, unequal, with_backward
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
SAME_BITS = ("ring_flash_attn", "torch_context_parallel_all", "yunchang_ring", "yunchang_zigzag", "yunchang_stripe",
             "yunchang_hybrid")  # fmt: skip
OURS = {name: ours for name, ours in installed.OURS.items() if name.startswith(SAME_BITS)}
RING_FLASH_ATTN = [name for name in OURS if name.startswith("ring_flash_attn")]
EVERYTHING = {"out", "lse", "dq", "dk", "dv"}
CAST_DQ = ("ring_flash_attn_ring", "ring_flash_attn_llama3_ring", "yunchang_ring")  # to bfloat16, whatever comes
ALIASED = [name for name in OURS if name.startswith(("ring_flash", "yunchang")) and name != "ring_flash_attn_llama3"]
CAUSAL_ONLY = ("zigzag", "stripe", "balanced", "hybrid")
PAIRS = [
    (name, mask) for name in OURS for mask in ("causal", "full") if mask == "causal" or not name.endswith(CAUSAL_ONLY)
]


def differing(pool: RealRanks, *cases: Case) -> set[str]:
    return unequal(*(results_of(pool, case) for case in cases))


def pair(variant: str, *words: str) -> tuple[Case, Case]:
    return case_of(variant, *words), case_of(OURS[variant], *words)


def comparable(variant: str, dtype: str, size: int) -> set[str]:
    """What no known fault of the package and no order of the backend's sums touches."""
    if dtype == "float32" and variant in ALIASED:
        return {"out", "lse"}
    if dtype == "float16" and variant in CAST_DQ:
        return EVERYTHING - {"dq"}
    if variant == "ring_flash_attn_llama3" and size > 3:
        return EVERYTHING - {"dk", "dv"}
    return EVERYTHING


@pytest.mark.stress(8, "variant", "mask", "dtype")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("variant", "mask"), PAIRS)
def test_our_schedule_has_the_package_s_bits(pool: RealRanks, variant: str, mask: str, dtype: str) -> None:
    """Grouped heads (8 on 2), batch 2, a scale of its own, every rank; the kernel is the same function in both."""
    alone = variant == "ring_flash_attn_llama3" or variant.startswith("torch")  # a ring would send to itself
    for size in (4,) if variant == "yunchang_hybrid" else (1, 2, 3, 4) if alone else (2, 3, 4):
        words = f"dtype={dtype}", f"problem.mask={mask}", f"world_size={size}", "problem.softmax_scale=0.25"
        assert not differing(pool, *pair(variant, *words)) & comparable(variant, dtype, size), size


@pytest.mark.parametrize("variant", ["ring_flash_attn_zigzag"])
def test_the_bits_are_the_same_on_another_kernel(pool: RealRanks, variant: str) -> None:
    assert not differing(pool, *pair(variant, "kernel=torch_flash", "dtype=bfloat16", "world_size=3"))


@pytest.mark.stress(2, "dtype", "size")
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("variant", ["ring_flash_attn_llama3"])
def test_llama3_s_sums_differ_by_the_backend_s_order_alone(
    pool: RealRanks, variant: str, dtype: str, size: int
) -> None:
    """gloo adds the slice of rank j from rank j-1 downwards, our contract (NCCL's ring) from rank j+1 upwards, both
    ending with j's own: the same for three ranks, another order for four. With gloo's own sum the bits are equal."""
    words = f"dtype={dtype}", f"world_size={size}"
    own = case_of("llama3", *words)
    backend = with_backward(own, str(Path(__file__).with_name("llama3_with_the_backend_s_sum.py")))
    theirs, fixed, swapped = (results_of(pool, case) for case in (case_of(variant, *words), own, backend))
    for name in ("dk", "dv"):
        assert all(torch.equal(a[name], b[name]) for a, b in zip(theirs, swapped, strict=True))
        same = all(torch.equal(a[name], b[name]) for a, b in zip(theirs, fixed, strict=True))
        assert same == (size == 3)


PLANTED = {
    "the ring turns the other way": ("precision.ring_direction=previous", {"out", "lse", "dq", "dk", "dv"}),
    "the diagonal comes last": ("precision.ring_order=diagonal_last", {"out", "lse", "dq", "dk", "dv"}),
    "partials are not rounded": ("precision.partial=float32", {"out"}),
    "another merge formula": ("precision.merge=logsumexp", {"lse"}),
    "sums in the inputs' dtype": ("precision.dkv_accumulator=input", {"dk", "dv"}),
}


@pytest.mark.parametrize("variant", ["ring_flash_attn_ring"])
def test_a_schedule_that_rounds_elsewhere_has_other_bits(pool: RealRanks, variant: str) -> None:
    """Full mask, four ranks: every rank merges four partials, so that an order can show."""
    words = "dtype=bfloat16", "world_size=4", "problem.mask=full"
    theirs = results_of(pool, case_of(variant, *words))
    for slip, (word, moved) in PLANTED.items():
        assert moved <= unequal(theirs, results_of(pool, case_of("ring", word, *words))), slip


UNFUSED = Path(__file__).with_name("unfused.py")
SHARDINGS = {"ring": "contiguous", "zigzag": "zigzag", "striped": "striped"}


def unfused(variant: str) -> list[str]:
    function, sharding = variant.removeprefix("ring_flash_attn_"), SHARDINGS.get(OURS[variant], "contiguous")
    return [f"variant.fn={UNFUSED}:{function}", f"variant.sharding={sharding}"]


@pytest.mark.parametrize("variant", RING_FLASH_ATTN)
def test_without_the_fuser_the_package_is_the_same_on_cpus(pool: RealRanks, variant: str) -> None:
    words = "dtype=bfloat16", "world_size=3"
    assert not differing(pool, case_of(variant, *words), case_of("callable", *unfused(variant), *words))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["flash_attn", "eager"])
@pytest.mark.parametrize("variant", RING_FLASH_ATTN)
def test_on_gpus_our_schedule_has_the_package_s_bits(gpus: RealRanks, variant: str, kernel: str) -> None:
    pytest.importorskip("flash_attn")
    for size in gpus.sizes:
        words = "device=cuda", f"kernel={kernel}", "dtype=bfloat16", f"world_size={size}"
        cases = case_of("callable", *unfused(variant), *words), case_of(OURS[variant], *words)
        assert not differing(gpus, *cases) & comparable(variant, "bfloat16", size), size
