"""Our schedules have the bits of the published ones that they stand for.

Of TransformerEngine's merge that is so where it runs as written (merge=rescaled_twice), on CPUs.
"""

import pytest

from accuracy.core.case import Case
from accuracy.package.installed import OURS
from tests.contract.package.driving import case_of, differing
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
SAME_BITS = ("ring_flash_attn", "torch_context_parallel_all", "yunchang_ring", "yunchang_zigzag", "yunchang_stripe",
             "yunchang_hybrid", "transformer_engine")  # fmt: skip
VARIANTS = [name for name in OURS if name.startswith(SAME_BITS)]
LLAMA3, GATHER, P2P = "ring_flash_attn_llama3", "transformer_engine_all_gather", "transformer_engine_p2p"
EVERYTHING = {"out", "lse", "dq", "dk", "dv"}
CAST_DQ = ("ring_flash_attn_ring", "ring_flash_attn_llama3_ring", "yunchang_ring")  # to bfloat16, whatever comes
CAUSAL_ONLY = ("zigzag", "stripe", "balanced", "hybrid")
SIZES = {  # of other packages: 3 and 4
    "yunchang_hybrid": (4,), P2P: (2, 4), GATHER: (2, 3), "transformer_engine_a2a": (2,),  # which has 2 key/value heads
    LLAMA3: (1, 3), **{name: (1, 4) for name in VARIANTS if name.startswith("torch")},
}  # fmt: skip
CASES = [
    (name, mask, dtype)
    for name in VARIANTS
    for mask in ("causal", "full")
    for dtype in ("bfloat16", "float16", "float32", "float64")
    if (mask == "causal" or not name.endswith(CAUSAL_ONLY))
    and (dtype != "float64" or name.startswith("transformer_engine"))
]


def pair(variant: str, *words: str) -> tuple[Case, Case]:
    written = ["precision.merge=rescaled_twice"] if variant == P2P else []
    return case_of(variant, *words), case_of(OURS[variant], *words, *written)


def comparable(variant: str, dtype: str, size: int) -> set[str]:
    """What no known fault of the package and no order of the backend's sums touches: gloo adds the slice of rank j from
    rank j-1 downwards, our contract (NCCL's ring) from rank j+1 upwards, both ending with j's own: of three ranks that
    is the same, of four another order."""
    if dtype == "float32" and variant.startswith(("ring_flash", "yunchang")) and variant != LLAMA3:
        return {"out", "lse"}
    if dtype == "float16" and variant in CAST_DQ:
        return EVERYTHING - {"dq"}
    return EVERYTHING - {"dk", "dv"} if variant in (LLAMA3, GATHER) and size > 3 else EVERYTHING


@pytest.mark.stress(16, "variant", "dtype")
@pytest.mark.parametrize(("variant", "mask", "dtype"), CASES)
def test_our_schedule_has_the_package_s_bits(pool: RealRanks, variant: str, mask: str, dtype: str) -> None:
    """Grouped heads (8 on 2), batch 2, a scale of its own, every rank; the kernel is the same function in both."""
    for size in SIZES.get(variant, (3, 4)):
        words = f"dtype={dtype}", f"problem.mask={mask}", f"world_size={size}", "problem.softmax_scale=0.25"
        assert not differing(pool, *pair(variant, *words)) & comparable(variant, dtype, size), size


TWICE = "precision.merge=rescaled_twice"
PLANTED = {  # a slip, its package, words, tensors that it moves
    "the ring turns the other way": ("ring", ["precision.ring_direction=previous"], EVERYTHING),
    "partials are not rounded": ("ring", ["precision.partial=float32"], {"out"}),
    "another merge formula": ("ring", ["precision.merge=logsumexp"], {"lse"}),
    "out is rounded once a hop": ("te_p2p", ["precision.merge=rescaled"], {"out"}),
    "dq is summed in float32": ("te_p2p", [TWICE, "precision.dq_accumulator=accumulate"], {"dq"}),
    "dk and dv travel and are summed in float32": (
        "te_p2p", [TWICE, "precision.dkv_accumulator=accumulate", "precision.gradient_wire=accumulate"], {"dk", "dv"},
    ),
    "the diagonal comes first in the backward": (
        "te_p2p", [TWICE, "precision.ring_order=diagonal_first"], {"dq", "dk", "dv"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("variant", ["ring_flash_attn_ring", P2P])
def test_a_schedule_that_rounds_elsewhere_has_other_bits(pool: RealRanks, variant: str) -> None:
    """Full mask, four ranks: every rank merges four partials, so that an order can show."""
    words = "dtype=bfloat16", "world_size=4", "problem.mask=full"
    for slip, (ours, changes, moved) in PLANTED.items():
        if ours == OURS[variant]:
            assert moved <= differing(pool, case_of(variant, *words), case_of(ours, *words, *changes)), slip
