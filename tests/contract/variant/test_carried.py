import importlib.util

import pytest

from tests.measuring import TINY, case_of, measure, refused

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
KERNEL = "kernel=triton_carry"
SMALL = ("problem.batch=1", "problem.heads=2", "problem.heads_kv=1", "problem.seqlen=36")
CHUNKS = {"bpt_ring": ("variant.bpt_ring.query_chunk=7", "variant.bpt_ring.key_chunk=8")}


@pytest.mark.stress(1)
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("variant", ["ring", "zigzag", "striped", "bpt_ring"])
def test_a_schedule_runs_unchanged(variant: str, mask: str) -> None:
    """To 128 u of float32, as a kernel alone is held to; a lost block costs 10^-2 or more."""
    words = (f"variant={variant}", "world_size=3", "dtype=float32", f"problem.mask={mask}", *CHUNKS.get(variant, ()))
    results = measure(*SMALL, KERNEL, *words)
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 128 * 2**-24


def test_a_ring_of_many_ranks_has_the_error_of_single_device() -> None:
    """Nothing is rounded between blocks: 1.02, as for merges of float32 partials; 16-bit partials are above 1.05."""
    ratio = {}
    for kernel in ("triton_carry", "eager"):
        results = measure("variant=ring", *SMALL, "dtype=float16", f"kernel={kernel}", "world_size=4")
        chosen = results[(results["rank"] == -1) & (results["tensor"] == "out")]
        ratio[kernel] = float(chosen["x_single_device"].mean())
    assert ratio["triton_carry"] < 1.02 < 1.05 < ratio["eager"], ratio


def test_a_knob_without_meaning_is_unsupported_with_a_reason() -> None:
    words = (*TINY, KERNEL, "dtype=float16", "world_size=2")
    for variant, knob in (("ring", "partial=float32"), ("zigzag", "out_accumulator=input"), ("bpt_ring", "lse=input")):
        assert f".{knob.split('=')[0]} changes no" in refused(*words, f"variant={variant}", f"precision.{knob}")
    for word in ("wire=float32", "gradient_partial=float32", "ring_order=diagonal_last"):
        case_of(*words, "variant=ring", f"precision.{word}")
