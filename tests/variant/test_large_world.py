"""Many ranks, few tokens each: the simulated world carries 256 ranks through a ring and through gathers, and 64 through
the schedules that cut blocks smaller (their time grows with the square)."""

import pytest

from tests.measuring import measure


@pytest.mark.parametrize(
    ("variant", "ranks"), [("ring", 256), ("llama3", 256), ("zigzag", 64), ("striped", 64), ("bpt_ring", 64)]
)
def test_many_ranks_agree_with_the_truth(variant: str, ranks: int) -> None:
    """Float64: sums over up to 256 blocks; 1e-12 as in the contract."""
    results = measure(
        f"variant={variant}",
        f"world_size={ranks}",
        "dtype=float64",
        "problem.seqlen=512",
        "problem.batch=1",
        "problem.heads=2",
        "problem.heads_kv=1",
    )
    assert (results["status"] == "ok").all(), results["reason"].unique()
    assert results["error_rel"].max() < 1e-12
    assert set(results["rank"]) == {-1, *range(ranks)}
