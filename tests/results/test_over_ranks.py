"""The worst rank and the mean over ranks, with an interval over seeds."""

import pandas as pd
import pytest

from accuracy.results.claim import over_ranks


def rows(*seeds: tuple[float, ...]) -> pd.DataFrame:
    case = {"variant": "ring", "precision": "", "dtype": "bfloat16", "tensor": "out", "world_size": 2}
    return pd.DataFrame(
        {**case, "seed": seed, "rank": rank, "x_single_device": times}
        for seed, ranks in enumerate(seeds)
        for rank, times in enumerate((99.0, *ranks), start=-1)  # the norm over all ranks together is no rank
    )


def test_the_worst_rank_is_taken_in_each_seed_and_averaged_over_seeds() -> None:
    found = over_ranks(rows((1.0, 1.2), (1.4, 1.0)), "max")
    assert found["x_single_device"].item() == pytest.approx(1.3)
    assert found["half"].item() == pytest.approx(
        12.706 * 0.1, rel=1e-3
    )  # t of one degree of freedom; s / sqrt(2) = 0.1


def test_the_mean_is_over_ranks_and_one_seed_has_no_interval() -> None:
    found = over_ranks(rows((1.0, 1.2)), "mean")
    assert found["x_single_device"].item() == pytest.approx(1.1)
    assert found["half"].isna().item()
