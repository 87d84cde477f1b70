import importlib.util

import pytest

from accuracy.core.errors import ConfigError
from tests.measuring import TINY, case_of, measure, refused

triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
CARRIED = "kernel=triton_carry"
SMALL = ("problem.batch=1", "problem.heads=2", "problem.heads_kv=1", "problem.seqlen=36")
FLOAT32 = 2.0**-24
UNITS = {"bfloat16": 2.0**-8, "float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}  # unit roundoffs
TENSORS = ("out", "lse", "dq", "dk", "dv")

# place, its dtype, variant, tensors that must suffer, tensors that must not
PLACES = [
    ("partial", "bfloat16", "ring", ("out",), ("lse", "dv")),
    ("gradient_partial", "bfloat16", "ring", ("dq", "dk", "dv"), ("out", "lse")),
    ("out_accumulator", "bfloat16", "ring", ("out",), ("lse", "dv")),
    ("lse", "bfloat16", "ring", ("lse",), ()),
    ("dq_accumulator", "bfloat16", "ring", ("dq",), ("out", "dk", "dv")),
    ("dkv_accumulator", "bfloat16", "ring", ("dk", "dv"), ("out", "dq")),
    ("wire", "bfloat16", "ring", TENSORS, ()),
    ("gradient_wire", "bfloat16", "ring", ("dk", "dv"), ("out", "dq")),
    ("dkv_accumulator", "bfloat16", "llama3_ring", ("dk", "dv"), ("out", "lse", "dq")),
    ("gradient_wire", "bfloat16", "ulysses", ("dq", "dk", "dv"), ("out", "lse")),
    ("wire", "float8_e4m3", "ring", TENSORS, ()),
    ("gradient_wire", "float8_e5m2", "ring", ("dk", "dv"), ("out", "lse", "dq")),
]


@pytest.mark.parametrize(("place", "dtype", "variant", "suffers", "spared"), PLACES)
def test_a_place_rounds_what_it_names(place: str, dtype: str, variant: str, suffers: tuple, spared: tuple) -> None:
    """In float32 inputs with one place at fewer bits: at least u/64 relative error there (lse averages the rounding of
    96 keys, a factor of 10, and is some times larger than its spread), elsewhere float32's (64 u: sums of 96 terms).
    A wire rounds at 3 hops, at most 4 u; in 8 bits a lost scale is a factor of 100."""
    words = ("world_size=4", "dtype=float32", "kernel=eager", f"precision.{place}={dtype}")
    results = measure(f"variant={variant}", *words)
    assert (results["status"] == "ok").all()
    errors = results[results["rank"] == -1].set_index("tensor")["error_rel"]
    for tensor in suffers:
        assert errors[tensor] > UNITS[dtype] / 64, tensor
        assert "float8" not in dtype or errors[tensor] < 4 * UNITS[dtype], tensor
    for tensor in spared:
        assert errors[tensor] < 64 * FLOAT32, tensor


def test_a_variant_without_wires_of_8_bits_says_so() -> None:
    with pytest.raises(ConfigError, match="variant llama3 has no wires of 8 bits: use 16 bits or more"):
        measure("variant=llama3", "world_size=4", "kernel=eager", "precision.wire=float8_e4m3")


@triton
@pytest.mark.stress(1)
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("variant", ["ring", "zigzag", "striped", "bpt_ring"])
def test_a_schedule_runs_unchanged_on_a_kernel_that_carries_its_state(variant: str, mask: str) -> None:
    """To 128 u of float32, as a kernel alone is held to; a lost block costs 10^-2 or more."""
    chunks = ("variant.bpt_ring.query_chunk=7", "variant.bpt_ring.key_chunk=8") if variant == "bpt_ring" else ()
    words = (f"variant={variant}", "world_size=3", "dtype=float32", f"problem.mask={mask}", *chunks)
    results = measure(*SMALL, CARRIED, *words)
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 128 * FLOAT32


@triton
def test_partials_that_are_not_rounded_bring_a_ring_back_to_single_device() -> None:
    """The eager kernel can hand over float32, and another carries its state: then the ring rounds out once."""
    ratio = {}
    for words in ("precision.partial=input", "precision.partial=float32", CARRIED):
        how = ("dtype=float16", "world_size=4", *(SMALL if words == CARRIED else ("kernel=eager", "seed=[0,1,2]")))
        rows = measure("variant=ring", *how, words)
        ratio[words] = rows.loc[(rows["rank"] == -1) & (rows["tensor"] == "out"), "x_single_device"].mean()
    published, *finer = ratio.values()
    assert max(finer) < 1.02 < 1.05 < published, ratio


@triton
def test_a_knob_without_meaning_is_unsupported_with_a_reason() -> None:
    words = (*TINY, CARRIED, "dtype=float16", "world_size=2")
    for variant, knob in (("ring", "partial=float32"), ("zigzag", "out_accumulator=input"), ("bpt_ring", "lse=input")):
        assert f".{knob.split('=')[0]} changes no" in refused(*words, f"variant={variant}", f"precision.{knob}")
    for word in ("wire=float32", "gradient_partial=float32", "ring_order=diagonal_last"):
        case_of(*words, "variant=ring", f"precision.{word}")
