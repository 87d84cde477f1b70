import pytest

from tests.contract.world import collectives

GPUS = (pytest.param(size, how, marks=pytest.mark.gpu) for size in (2, 3, 4) for how in ("cuda", "opened"))
CASES = [(3, "cpu"), pytest.param(4, "cpu", marks=pytest.mark.stress), *GPUS]
NAMED = {
    "a lost byte": {"p2p of bfloat16", "from_one of float16", "all_to_all of float8_e5m2", "all_gather of bool"},
    "another order": {"sums of bfloat16", "sums of float32"},
    "a neighbour's part": {"all_gather of float32", "all_to_all of int64", "beyond gloo of complex64"},
}


@pytest.mark.parametrize(("size", "device"), CASES)
def test_every_collective_and_sum_has_the_bits_it_should_and_a_planted_fault_is_named(size: int, device: str) -> None:
    """In every dtype, on every rank, in a group of two; NCCL's bits where each has a GPU. Through main
    memory, and where each rank opens the others' memory on a GPU. Faults are planted in 3 ranks."""
    planted = NAMED if size == 3 and device != "cuda" else {}
    dtypes = {fault: sorted({each.rpartition(" ")[2] for each in named}) for fault, named in planted.items()}
    found = collectives.found_by_ranks(size, device, {"none": collectives.DTYPES, **dtypes})
    assert found["none"] == [set()] * size
    for fault, named in planted.items():
        assert named <= set.union(*found[fault]), fault
