import pytest

from tests.contract.world import collectives

GPUS = (pytest.param(size, how, marks=pytest.mark.gpu) for size in (2, 3, 4) for how in ("cuda", "opened"))
CASES = [(3, "cpu"), pytest.param(4, "cpu", marks=pytest.mark.stress), *GPUS]


@pytest.mark.parametrize(("size", "device"), CASES)
def test_every_collective_has_gloo_s_bits_and_every_sum_those_of_its_stated_order(size: int, device: str) -> None:
    """In every dtype, on every rank, in a group of two; NCCL's bits where each has a GPU. A tree of 3 has one alone.
    Through main memory, and where each rank opens the others' memory on a GPU."""
    assert collectives.found_by_ranks(size, device, {"none": collectives.DTYPES}) == {"none": [set()] * size}


NAMED = {
    "a lost byte": {"p2p of bfloat16", "from_one of float16", "all_to_all of float8_e5m2", "all_gather of bool"},
    "another order": {"ring of bfloat16", "ring of float32", "ring of float8_e4m3fn"},
    "a neighbour's part": {"all_gather of float32", "all_to_all of int64", "beyond gloo of complex64"},
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("opened", marks=pytest.mark.gpu)])
def test_a_planted_fault_of_the_backend_is_named(device: str) -> None:
    dtypes = {fault: sorted({each.rpartition(" ")[2] for each in named}) for fault, named in NAMED.items()}
    for fault, found in collectives.found_by_ranks(3, device, dtypes).items():
        assert NAMED[fault] <= set.union(*found), fault
