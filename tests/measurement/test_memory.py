import pytest

from accuracy.execute.plan import plan
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from tests.measuring import configuration

WORDS = ("problem.seqlen=2048", "problem.heads=8", "problem.heads_kv=8", "problem.head_dim=64")
ALONE, ALL = "variant=[ring,llama3,bpt_ring]", "variant=[ring,zigzag,striped,llama3,llama3_zigzag,bpt_ring]"


@pytest.mark.parametrize("many", [False, True])
def test_the_estimate_covers_what_a_case_takes(many: bool, stress: bool) -> None:
    size, tokens = (32, 2048) if stress else (8, 1024)
    words = (*WORDS, ALL if many else ALONE, f"world_size={size if many else 1}", "variant.llama3.heads_stride=8",
             f"problem.seqlen={tokens}")  # fmt: skip
    pipeline = Pipeline("test", Cache(None, 0))
    for each in plan(configuration(*words), None):
        row = pipeline.measure(each.case).rows[0]
        assert row["status"] == "ok"
        assert row["peak_bytes"] is None or row["peak_bytes"] <= bytes_needed(each.case), each.case.variant.name


def test_few_queries_on_many_keys_take_memory_of_the_keys_alone() -> None:
    """8192 queries would need their own tensors and scores: more than 64 queries do, by every query's share."""
    words = ("problem.seqlen=8192", "problem.heads=4", "problem.heads_kv=4", "problem.head_dim=64", "kernel=eager")
    few, many = (
        bytes_needed(each.case)
        for each in plan(
            configuration(*words, "variant=single_device", "world_size=1", "problem.seqlen_q=[64,null]"), None
        )
    )
    query_bytes = (8192 - 64) * 4 * 64 * (8 + 2)  # of the reference in float64 and of q in bfloat16, at the very least
    assert many - few > query_bytes
    pipeline = Pipeline("test", Cache(None, 0))
    (only,) = plan(configuration(*words, "variant=single_device", "world_size=1", "problem.seqlen_q=64"), None)
    measured = pipeline.measure(only.case).rows[0]
    assert measured["peak_bytes"] is None or measured["peak_bytes"] <= few


def test_gathering_on_many_ranks_of_one_device_is_counted() -> None:
    words = (*WORDS, "variant=llama3", "world_size=[1,64]", "variant.llama3.heads_stride=8")
    one, many = (bytes_needed(each.case) for each in plan(configuration(*words), None))
    gathered = 2 * 2048 * 8 * 64 * 2  # k and v in bfloat16 on each rank
    assert many - one >= 63 * gathered


SINGLE_DEVICE = (
    "variant=single_device", "world_size=1", "problem.seqlen=1024", "problem.heads=8", "problem.heads_kv=2",
)  # fmt: skip
SCORES = 4 * 8 * 1024**2  # bytes of all scores in float32


def test_a_kernel_that_forms_all_scores_is_counted_and_one_that_forms_a_chunk_is_not() -> None:
    chunks = ("kernel.chunked.query_chunk=256", "kernel.chunked.key_chunk=256")
    plans = plan(configuration(*SINGLE_DEVICE, "kernel=[torch_flash,torch_math,chunked]", *chunks), None)
    needed = {each.case.kernel.name: bytes_needed(each.case) for each in plans}
    assert needed["torch_math"] - needed["torch_flash"] > 6 * SCORES
    assert needed["chunked"] - needed["torch_flash"] <= 6 * SCORES / 16


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_estimate_covers_what_every_kernel_takes(dtype: str) -> None:
    """On CUDA, where the peak is counted by the allocator; the CPU's resident set keeps what was freed."""
    pipeline = Pipeline("test", Cache(None, 0))
    for each in plan(configuration(*SINGLE_DEVICE, "kernel=every", f"dtype={dtype}"), None):
        if each.unsupported is None:
            row = pipeline.measure(each.case).rows[0]
            assert row["status"] == "ok", row["reason"]
            assert row["peak_bytes"] <= bytes_needed(each.case), each.case.kernel.name


def test_condition_numbers_are_counted() -> None:
    """Two float64 magnitudes of every result at the very least."""
    plain, asked = (
        bytes_needed(each.case)
        for words in ((), ("conditions=true",))
        for each in plan(configuration(*WORDS, "variant=single_device", "world_size=1", *words), None)
    )
    assert asked - plain > 2 * 8 * 4 * 2048 * 8 * 64
