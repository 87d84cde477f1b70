"""Many ranks, few tokens each: the simulated world carries 256 ranks through every schedule that shards tokens."""

import pytest

from tests.measuring import measure


@pytest.mark.stress
@pytest.mark.parametrize("variant", ["ring", "zigzag", "striped", "llama3", "bpt_ring"])
def test_256_ranks_agree_with_the_reference(variant: str) -> None:
    """Float64: sums over up to 256 blocks; 1e-12 as in the contract."""
    results = measure(
        f"variant={variant}",
        "world_size=256",
        "dtype=float64",
        "problem.seqlen=512",
        "problem.batch=1",
        "problem.heads=2",
        "problem.heads_kv=1",
    )
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 1e-12
    assert set(results["rank"]) == {-1, *range(256)}
