import pytest

from accuracy.core.errors import ConfigError
from tests.measuring import measure

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
    ("wire", "bfloat16", "llama3", TENSORS, ()),
    ("dkv_accumulator", "bfloat16", "llama3_ring", ("dk", "dv"), ("out", "lse", "dq")),
    ("gradient_wire", "bfloat16", "llama3", ("dk", "dv"), ("out", "dq")),
    ("gradient_wire", "bfloat16", "ulysses", ("dq", "dk", "dv"), ("out", "lse")),
    ("wire", "bfloat16", "ulysses", TENSORS, ()),
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


def test_unrounded_partials_bring_a_ring_back_to_single_device() -> None:
    """The eager kernel can hand over float32: then the ring rounds out once, as single device does."""
    ratio = {}
    for words in ("precision.partial=input", "precision.partial=float32"):
        rows = measure("variant=ring", "kernel=eager", "world_size=8", "dtype=bfloat16", "seed=[0,1,2]", words)
        ratio[words] = rows.loc[(rows["rank"] == -1) & (rows["tensor"] == "out"), "x_single_device"].mean()
    published, finer = ratio.values()
    assert finer < 1.02 < 1.05 < published
