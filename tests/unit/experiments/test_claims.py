"""An experiment's claims are not able to change the table. A claim that no table can contradict says nothing: each
published one that holds fails on some distorted table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accuracy.core import paths
from experiments.claim import Claim, judge, over_ranks
from experiments.published import Tables

ROOT = Path(__file__).parents[3]
RESULTS = pd.DataFrame({"error_rel": [1.0, 2.0]})
HEAD = "from experiments.claim import Claim\n\n\ndef claims(results):\n    "


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an experiment that is called made_up."""
    monkeypatch.setattr(paths, "EXPERIMENTS", tmp_path)
    (tmp_path / "made_up").mkdir()
    return tmp_path / "made_up"


def test_claims_cannot_change_a_table_and_a_faulty_file_is_a_claim_that_does_not_hold(experiment: Path) -> None:
    for body, claim in {
        "results['error_rel'] = 0\n    return [Claim('small', True, '2 < 3')]": Claim("small", True, "2 < 3"),
        "raise KeyError('x_single_device')": "KeyError: 'x_single_device'",
        "return ['text']": "returned a str",
        ":": "Syntax",
    }.items():
        (experiment / "claims.py").write_text(HEAD + body)
        (found,) = judge("made_up", RESULTS)
        assert found == claim if isinstance(claim, Claim) else not found.holds and claim in found.evidence
    assert RESULTS["error_rel"].tolist() == [1.0, 2.0]
    assert judge("absent", RESULTS) == []


def test_the_worst_rank_or_the_mean_is_taken_in_each_seed_and_averaged_over_seeds() -> None:
    case = {"variant": "ring", "precision": "", "dtype": "bfloat16", "tensor": "out", "world_size": 2}
    rows = pd.DataFrame(
        {**case, "seed": seed, "rank": rank, "x_single_device": times}
        for seed, ranks in enumerate(((1.0, 1.2), (1.4, 1.0)))
        for rank, times in enumerate((99.0, *ranks), start=-1)  # the norm over all ranks together is no rank
    )
    found = over_ranks(rows, "max")
    assert found["x_single_device"].item() == pytest.approx(1.3)
    # t of one degree of freedom; s / sqrt(2) = 0.1
    assert found["half"].item() == pytest.approx(12.706 * 0.1, rel=1e-3)
    found = over_ranks(rows[rows["seed"] == 0], "mean")
    assert found["x_single_device"].item() == pytest.approx(1.1)
    assert found["half"].isna().item()


REPORTS = ROOT / "reports"
PUBLISHED = sorted(path.parent for path in REPORTS.glob("*/*/run.json"))
YARDSTICKS = ("single_device_", "exact_", "floor_", "reference_", "condition_")


def _numbers(results: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that hold measured numbers, without those that say what the case was."""
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


def _renamed(results: pd.DataFrame) -> pd.DataFrame:
    """Return the table in which each variant has the name of the one behind it in the alphabet."""
    names = sorted(results["variant"].dropna().unique())
    return results.assign(variant=results["variant"].map(dict(zip(names, names[1:] + names[:1], strict=True))))


def _column(results: pd.DataFrame, name: str) -> pd.Series:
    """1 where a table lacks it: stacks have layers in place of ranks."""
    return results.get(name, pd.Series(1.0, results.index)).fillna(1.0)


DISTORTIONS: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    lambda results: _times(results, 1e-3),
    lambda results: _times(results, 1e3, lambda name: not name.startswith(YARDSTICKS)),
    lambda results: _times(results, 1e3, lambda name: name.startswith("single_device_")),
    lambda results: _times(results, _column(results, "layers") ** 2),
    lambda results: _times(results, 2.0 ** _column(results, "rank").clip(lower=0)),
    _scrambled,
    _renamed,
    lambda results: results.assign(status=["failed", *results["status"].iloc[1:]]),
)


@pytest.mark.stress(1)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_published_claim_that_holds_fails_on_a_distorted_table(folder: Path) -> None:
    experiment = folder.parent.name
    results = Tables(REPORTS).rows(f"{experiment}/{folder.name}")
    holding = {claim.statement for claim in judge(experiment, results) if claim.holds}
    distorted = [judge(experiment, distort(results)) for distort in DISTORTIONS]
    assert holding <= {claim.statement for claims in distorted for claim in claims if claim.holds is False}
