import importlib.util

import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute.plan import plan
from tests.measuring import TINY, configuration, measure

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
KERNEL = "kernel=triton_carry"
SMALL = ("dtype=float32", "problem.batch=1", "problem.heads=2", "problem.heads_kv=1", "problem.seqlen=60")
CHUNKS = {"bpt_ring": ("variant.bpt_ring.query_chunk=12", "variant.bpt_ring.key_chunk=13")}


@pytest.mark.stress(2, "mask")
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("variant", ["ring", "zigzag", "striped", "bpt_ring"])
def test_a_schedule_runs_unchanged(variant: str, mask: str) -> None:
    """To 128 u of float32, as a kernel alone is held to; a lost block costs 10^-2 or more."""
    words = (f"variant={variant}", KERNEL, *SMALL, f"problem.mask={mask}", *CHUNKS.get(variant, ()))
    results = measure(*words, "world_size=3")
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 128 * 2**-24


def test_a_ring_of_many_ranks_has_the_error_of_single_device() -> None:
    """Nothing is rounded between blocks: 1.02, as for merges of float32 partials; 16-bit partials are above 1.05."""
    words = ("variant=ring", "world_size=6", "dtype=float16", *SMALL[1:4])
    ratio = {}
    for kernel in ("triton_carry", "eager"):
        results = measure(*words, f"kernel={kernel}")
        chosen = results[(results["rank"] == -1) & (results["tensor"] == "out")]
        ratio[kernel] = float(chosen["x_single_device"].mean())
    assert ratio["triton_carry"] < 1.02 < 1.05 < ratio["eager"], ratio


@pytest.mark.parametrize(
    ("knob", "variant", "unsupported"),
    [
        ("partial=float32", "ring", True), ("out_accumulator=input", "zigzag", True),
        ("lse=input", "bpt_ring", True), ("merge=double", "striped", True), ("merge=sigmoid", "ring", False),
        ("wire=float32", "ring", False), ("gradient_partial=float32", "ring", False),
        ("ring_order=diagonal_last", "ring", False), ("partial=float32", "llama3", False),
    ],
)  # fmt: skip
def test_a_knob_without_meaning_is_unsupported_with_a_reason(knob: str, variant: str, unsupported: bool) -> None:
    chosen = configuration(*TINY, f"variant={variant}", KERNEL, "dtype=float16", "world_size=2", f"precision.{knob}")
    if not unsupported:
        assert [each.unsupported for each in plan(chosen, None)] == [None]
        return
    with pytest.raises(ConfigError, match=rf"carries the running state .* precision\.{knob.split('=')[0]} changes no"):
        plan(chosen, None)
