"""torch's context parallelism of flex_attention, on gloo in torch's unfused form."""

import pytest

from accuracy.package import torch_flex_context_parallel
from tests.package.driving import case_of, rows_of
from tests.real_ranks import RealRanks

pytestmark = pytest.mark.xdist_group("packages")
WORDS = ("dtype=float64", "world_size=2", "problem.seqlen=256", "problem.batch=1")


@pytest.fixture(autouse=True)
def _known() -> None:  # no mark: it imports torch's tensors of several devices, which other tests do without
    if torch_flex_context_parallel._module() is None:
        pytest.skip("this torch has none")


@pytest.mark.parametrize("sharding", ["contiguous", "balanced"])
def test_in_float64_it_is_the_reference(pool: RealRanks, sharding: str) -> None:
    """1e-12, as of our own schedules: torch's orchestration rounds in the inputs' dtype only."""
    rows = rows_of(pool, case_of(f"torch_flex_context_parallel_{sharding}", *WORDS))
    assert {"out", "lse", "dq", "dk", "dv"} <= set(rows.index)
    assert rows["error_rel"].max() < 1e-12, rows["error_rel"].to_dict()


def test_shards_in_another_order_are_seen(pool: RealRanks) -> None:
    words = "variant.sharding=zigzag", "variant.fn=accuracy.package.torch_flex_context_parallel.contiguous"
    assert rows_of(pool, case_of("callable", *words, *WORDS)).loc["out", "error_rel"] > 1e-2
