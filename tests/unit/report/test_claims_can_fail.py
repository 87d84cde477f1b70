"""A claim that no table can contradict says nothing: each published one that holds fails on some distorted table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accuracy.results.claim import Claim, judge, judge_answer
from experiments.published import Tables

REPORTS = Path(__file__).parents[3] / "reports"
PUBLISHED = sorted(path.parent for path in REPORTS.glob("*/*/run.json"))
YARDSTICKS = ("single_device_", "exact_", "floor_", "reference_", "condition_")


def _numbers(results: pd.DataFrame) -> pd.DataFrame:
    """What was measured, without numbers of the case."""
    return results.select_dtypes("float").drop(columns=["softmax_scale", "gain"], errors="ignore")


def _times(results: pd.DataFrame, factor: object, only: Callable[[str], bool] = lambda name: True) -> pd.DataFrame:
    changed = _numbers(results).mul(factor, axis=0)
    return results.assign(**{name: changed[name] for name in changed if only(name)})


def _scrambled(results: pd.DataFrame) -> pd.DataFrame:
    measured = np.flatnonzero(results["error_rel"].notna())
    rows = np.arange(len(results))
    rows[measured] = np.random.default_rng(0).permutation(measured)
    numbers = _numbers(results)
    return results.assign(**{name: numbers[name].to_numpy()[rows] for name in numbers})


def _column(results: pd.DataFrame, name: str) -> pd.Series:
    """1 where a table lacks it: stacks have layers in place of ranks; conditions are recorded where asked for."""
    return results.get(name, pd.Series(1.0, results.index)).fillna(1.0)


def _by_kernel(results: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Each kernel's numbers so many times those of the one before it by name and options."""
    kernel = results["kernel"].fillna("") + " " + results["kernel_options"].fillna("")
    return _times(results, factor ** kernel.astype("category").cat.codes.astype(float))


DISTORTIONS: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    lambda results: _times(results, 1e3),
    lambda results: _times(results, 1e-3),
    lambda results: _times(results, 1e3, lambda name: not name.startswith(YARDSTICKS)),
    lambda results: _times(results, 1e3, lambda name: name.startswith("single_device_")),
    lambda results: _times(results, results["world_size"] ** 2.0),
    lambda results: _times(results, _column(results, "layers") ** 2),
    lambda results: _times(results, 2.0 ** _column(results, "rank").clip(lower=0)),
    lambda results: results.assign(**dict.fromkeys(("error_bias", "error_outward"), _column(results, "error_rms"))),
    lambda results: _times(results, _column(results, "condition_softmax") ** 4),
    lambda results: results.assign(error_rel=1e-3 * _column(results, "condition_sum")),
    lambda results: _by_kernel(results, 4.0),
    lambda results: _by_kernel(results, 0.25),
    _scrambled,
    lambda results: results.assign(status=["failed", *results["status"].iloc[1:]]),
)


@pytest.mark.stress(1)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_published_claim_that_holds_fails_on_a_distorted_table(folder: Path) -> None:
    experiment = folder.parent.name
    results = Tables(REPORTS).rows(f"{experiment}/{folder.name}")

    def judged(table: pd.DataFrame) -> list[Claim]:
        return [*judge(experiment, table), *judge_answer(experiment, table)]

    holding = {claim.statement for claim in judged(results) if claim.holds}
    distorted = [judged(distort(results)) for distort in DISTORTIONS]
    assert holding <= {claim.statement for claims in distorted for claim in claims if claim.holds is False}
