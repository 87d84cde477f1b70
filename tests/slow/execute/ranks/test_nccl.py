from collections.abc import Iterator

import pandas as pd
import pytest
import torch

from accuracy.execute.plan import plan
from accuracy.variant.base import schedule_of
from tests.measuring import COSTS, configuration, pipeline
from tests.real_ranks import RealRanks
from tests.variants import schedules, skip_if_bound_to_a_kernel

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two GPUs or more"),
    pytest.mark.xdist_group("nccl"),
]
SIZES = [size for size in (1, 2, 3, 4, 8) if size <= GPUS]
PROBLEM = ("problem.seqlen=1536", "problem.heads=8", "problem.heads_kv=2", "problem.head_dim=64", "problem.batch=2")
NO_GRADIENTS = {f"the variant returns no {name}" for name in ("dq", "dk", "dv")}


@pytest.fixture(scope="module")
def pool() -> Iterator[RealRanks]:
    ranks = RealRanks(tuple(SIZES), "nccl", timeout=120.0)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("variant", schedules())
def test_both_worlds_give_the_same_bits(pool: RealRanks, variant: str, dtype: str) -> None:
    """float32 runs on the eager kernel, the 16-bit dtypes on the first that the machine has. One differing bit in an
    element moves at least the sum of squares."""
    skip_if_bound_to_a_kernel(variant)
    pipelines = pipeline(), pipeline(pool.run)
    words = [f"variant=[{variant},ring]", f"world_size={SIZES}".replace(" ", ""), f"dtype={dtype}", "device=cuda"]
    plans = plan(configuration(*PROBLEM, *words, *(["kernel=eager"] if dtype == "float32" else [])), None)
    runnable = [each.case for each in plans if each.case.variant.name == variant and each.unsupported is None]
    assert runnable
    for case in runnable:
        expected, found = (
            pd.DataFrame(each.measure(case).rows).drop(columns=COSTS, errors="ignore") for each in pipelines
        )
        missing = set(expected.loc[expected["status"] != "ok", "reason"])
        assert missing == (set() if schedule_of(case.variant.forward).gradients else NO_GRADIENTS)
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
