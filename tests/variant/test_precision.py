import pytest

from accuracy.core.errors import ConfigError
from tests.measuring import measure

FLOAT32 = 2.0**-24
COARSE = 2.0**-8  # bfloat16's unit roundoff

# place, variant, tensors that must suffer, tensors that must not
PLACES = [
    ("partial", "ring", ("out",), ("lse", "dv")),
    ("gradient_partial", "ring", ("dq", "dk", "dv"), ("out", "lse")),
    ("out_accumulator", "ring", ("out",), ("lse", "dv")),
    ("lse", "ring", ("lse",), ()),
    ("dq_accumulator", "ring", ("dq",), ("out", "dk", "dv")),
    ("dkv_accumulator", "ring", ("dk", "dv"), ("out", "dq")),
    ("wire", "ring", ("out", "lse", "dq", "dk", "dv"), ()),
    ("gradient_wire", "ring", ("dk", "dv"), ("out", "dq")),
    ("wire", "llama3", ("out", "lse", "dq", "dk", "dv"), ()),
    ("dkv_accumulator", "llama3_ring", ("dk", "dv"), ("out", "lse", "dq")),
    ("gradient_wire", "llama3", ("dk", "dv"), ("out", "dq")),
    ("gradient_wire", "ulysses", ("dq", "dk", "dv"), ("out", "lse")),
    ("wire", "ulysses", ("out", "lse", "dq", "dk", "dv"), ()),
]


@pytest.mark.parametrize(("place", "variant", "suffers", "spared"), PLACES)
def test_a_place_rounds_what_it_names(place: str, variant: str, suffers: tuple, spared: tuple) -> None:
    """In float32 inputs with one place at bfloat16: at least u/64 relative error there (lse averages the rounding of
    96 keys, a factor of 10, and is some times larger than its spread), elsewhere float32's (64 u: sums of 96 terms)."""
    words = ("world_size=4", "dtype=float32", "kernel=eager", f"precision.{place}=bfloat16")
    results = measure(f"variant={variant}", *words)
    assert (results["status"] == "ok").all()
    errors = results[results["rank"] == -1].set_index("tensor")["error_rel"]
    for tensor in suffers:
        assert errors[tensor] > COARSE / 64, tensor
    for tensor in spared:
        assert errors[tensor] < 64 * FLOAT32, tensor


@pytest.mark.parametrize(("place", "word", "suffers"), [
    ("wire", "float8_e4m3", ("out", "lse", "dq", "dk", "dv")), ("gradient_wire", "float8_e5m2", ("dk", "dv")),
])  # fmt: skip
def test_a_wire_may_have_8_bits(place: str, word: str, suffers: tuple) -> None:
    """u = 2^-4 and 2^-3: at least u/64 (as above), at most 4 u of 3 hops; a lost scale is a factor of 100."""
    unit = 2.0**-4 if word == "float8_e4m3" else 2.0**-3
    results = measure("variant=ring", "world_size=4", "dtype=float32", "kernel=eager", f"precision.{place}={word}")
    errors = results[results["rank"] == -1].set_index("tensor")["error_rel"]
    for tensor in ("out", "lse", "dq", "dk", "dv"):
        low, high = (unit / 64, 4 * unit) if tensor in suffers else (0, 64 * FLOAT32)
        assert low <= errors[tensor] < high, tensor


def test_a_variant_without_wires_of_8_bits_says_so() -> None:
    with pytest.raises(ConfigError, match="variant llama3 has no wires of 8 bits: use 16 bits or more"):
        measure("variant=llama3", "world_size=4", "kernel=eager", "precision.wire=float8_e4m3")


def test_unrounded_partials_bring_a_ring_back_to_single_device() -> None:
    """The eager kernel can hand over float32: then the ring rounds out once, as single device does."""
    words = ["variant=ring", "world_size=8", "dtype=bfloat16", "kernel=eager", "seed=[0,1,2]"]
    published = measure(*words)
    finer = measure(*words, "precision.partial=float32")
    ratio = {
        name: rows[(rows["rank"] == -1) & (rows["tensor"] == "out")]["x_single_device"].mean()
        for name, rows in (("published", published), ("finer", finer))
    }
    assert ratio["finer"] < 1.02 < 1.05 < ratio["published"]


def test_compensation_recovers_what_a_coarse_accumulator_loses() -> None:
    """Kahan in a bfloat16 accumulator: the error stops growing with the number of merges."""
    words = ("variant=ring", "world_size=16", "dtype=float32", "kernel=eager", "precision.out_accumulator=bfloat16")
    errors = {}
    for merge in ("sigmoid", "compensated"):
        results = measure(*words, f"precision.merge={merge}", "problem.mask=full")
        errors[merge] = results[(results["rank"] == -1) & (results["tensor"] == "out")]["error_rel"].iloc[0]
    assert errors["compensated"] < errors["sigmoid"] / 1.5
