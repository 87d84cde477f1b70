import pytest

from tests.contract.world import collectives

CPU, GPU, OPENED = "cpu", pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("opened", marks=pytest.mark.gpu)


@pytest.mark.parametrize("device", [CPU, GPU, OPENED])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_collective_has_gloo_s_bits_and_every_sum_those_of_its_stated_order(size: int, device: str) -> None:
    """In every dtype, on every rank, and NCCL's bits where each rank has a GPU. Of 3 ranks a tree has a rank without a
    partner. Through main memory, and where each rank opens the others' memory on a GPU."""
    assert collectives.found_by_ranks(size, device) == [set()] * size


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("a lost byte", {"p2p of bfloat16", "from_one of float16", "all_to_all of float8_e5m2", "all_gather of bool"}),
        ("another order", {"ring of bfloat16", "ring of float32", "ring of float8_e4m3fn"}),
        ("a neighbour's part", {"all_gather of float32", "all_to_all of int64", "beyond gloo of complex64"}),
    ],
)
@pytest.mark.parametrize("device", [CPU, OPENED])
def test_a_planted_fault_of_the_backend_is_named(fault: str, named: set[str], device: str) -> None:
    assert named <= set.union(*collectives.found_by_ranks(4, device, fault))
