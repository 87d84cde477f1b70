import pytest

from accuracy.config import find
from accuracy.measurement.memory import bytes_needed
from tests.measuring import cases, pipeline

WORDS = ("problem.seqlen=2048", "problem.heads=8", "problem.heads_kv=8", "problem.head_dim=64")
SINGLE = ("variant=single_device", "world_size=1")


def needed(*words: str) -> list[int]:
    return [bytes_needed(case) for case in cases(*WORDS, *words)]


def assert_covered(*words: str) -> None:
    by = pipeline()
    for case in cases(*WORDS, *words):
        row = by.measure(case).rows[0]
        assert row["status"] == "ok", row["reason"]
        assert row["peak_bytes"] is None or row["peak_bytes"] <= bytes_needed(case), case


def test_the_estimate_covers_what_a_case_takes(stress: bool) -> None:
    size, tokens = (32, 2048) if stress else (4, 512)
    shape = ("variant.llama3.heads_stride=8", f"problem.seqlen={tokens}")
    assert_covered("variant=[ring,zigzag,striped,llama3,llama3_zigzag,bpt_ring]", f"world_size={size}", *shape)
    assert_covered("variant=[ring,llama3,bpt_ring]", "world_size=1", *shape)
    assert_covered(*SINGLE, "kernel=eager", "problem.heads=4", "problem.heads_kv=4",
                   "problem.seqlen_q=64")  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_estimate_covers_what_every_kernel_takes(dtype: str) -> None:
    """On CUDA, where the peak is counted by the allocator; the CPU's resident set keeps what was freed. What
    is compiled takes 20 s in a dtype."""
    kernels = ",".join(find.sources("kernel")) if dtype == "bfloat16" else "torch_efficient,torch_math"
    words = f"kernel=[{kernels}]", f"dtype={dtype}", "unusable=record"
    assert_covered(*SINGLE, "problem.seqlen=1024", "problem.heads_kv=2", *words)


def test_what_is_large_is_counted_and_what_is_not_is_not() -> None:
    """Each by what it takes at the very least: queries in float64 and bfloat16, keys and values that every rank
    gathers, two float64 magnitudes of every result, a second reference (out, dq, dk, dv in float64) of inputs in 8
    bits, and scores of a kernel that forms all of them, not of others."""
    tensor = 2048 * 8 * 64
    few, many = needed(*SINGLE, "kernel=eager", "problem.seqlen_q=[64,null]")
    assert many - few > (2048 - 64) * 8 * 64 * (8 + 2)
    one, all_ranks = needed("variant=llama3", "world_size=[1,64]", "variant.llama3.heads_stride=8")
    assert all_ranks - one >= 63 * 2 * tensor * 2
    assert needed(*SINGLE, "conditions=true")[0] - needed(*SINGLE)[0] > 2 * 8 * 4 * tensor
    assert needed(*SINGLE, "dtype=float8_e4m3")[0] - needed(*SINGLE, "dtype=bfloat16")[0] >= 4 * 8 * tensor
    scores = 4 * 8 * 2048**2
    flash, chunked, every = (needed(*SINGLE, f"kernel={name}")[0] for name in ("torch_flash", "chunked", "torch_math"))
    assert every - flash > 6 * scores
    small = needed(*SINGLE, "kernel=chunked", "kernel.chunked.query_chunk=256", "kernel.chunked.key_chunk=256")[0]
    assert small - flash <= 10 * scores / 64 < chunked - flash
