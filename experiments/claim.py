"""What does an experiment claim, and does the table bear it out?

An experiment's folder may hold `claims.py` with `def claims(results: pandas.DataFrame) -> list[Claim]`. In goes the
table of a run, out come statements with the evidence for or against each. No torch here.
"""

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.core.groupby import SeriesGroupBy
from scipy.special import stdtrit

from accuracy.core import fields, paths

KEYS = ("variant", "precision", "dtype", "tensor", "world_size")
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Claim:
    """A statement that a table can support or contradict; holds is None where this table cannot decide."""

    statement: str
    holds: bool | None
    evidence: str

    @property
    def line(self) -> str:
        """One line for a terminal."""
        word = {None: "cannot be judged", True: "holds", False: "does not hold"}[self.holds]
        return f"{word}: {self.statement} ({self.evidence})"


Where = Callable[[pd.Series], str]
"""A row -> its text in a claim's evidence."""


def largest_below(
    statement: str, rows: pd.DataFrame, bound: float, column: str = "x_single_device", where: Where | None = None
) -> Claim:
    """Whether a column's largest value is below a bound; the evidence says what it is and where."""
    return _end(statement, rows, column, "largest", lambda value: value < bound, where or place_of)


def smallest_above(
    statement: str, rows: pd.DataFrame, bound: float, column: str = "x_single_device", where: Where | None = None
) -> Claim:
    """Whether a column's smallest value is above a bound; the evidence says what it is and where."""
    return _end(statement, rows, column, "smallest", lambda value: value > bound, where or place_of)


def _end(
    statement: str, rows: pd.DataFrame, column: str, which: str, holds: Callable[[float], bool], where: Where
) -> Claim:
    if rows.empty:
        return Claim(statement, None, "not measured")
    values = rows[column]
    row = rows.iloc[int(values.argmax() if which == "largest" else values.argmin())]
    return Claim(statement, bool(holds(row[column])), f"{which} of {len(rows)}: {row[column]:.4g} ({where(row)})")


def place_of(row: pd.Series) -> str:
    """Where a row stands, for a claim's evidence."""
    return f"{row['tensor']} of {row['variant']}, {row['dtype']}, world size {row['world_size']}"


def no_failure(results: pd.DataFrame) -> Claim:
    """Whether every case was measured or unsupported."""
    failed = results[results["status"] == "failed"]["case_id"].nunique()
    return Claim("No case fails.", failed == 0, f"{failed} failed of {results['case_id'].nunique()}")


def beside(rows: pd.DataFrame, twins: Mapping[str, str]) -> pd.DataFrame:
    """Rows of the variants that have a twin in the same case, with `ours`, its name, and `ratio`, their relative error
    over its."""
    case = [*fields.names_but(fields.VARIANT), "tensor", "rank"]
    named = rows[rows["variant"].isin(twins)].assign(ours=lambda each: each["variant"].map(twins))
    other = rows[[*case, "variant", "error_rel"]].rename(columns={"variant": "ours", "error_rel": "error_of_ours"})
    both = named.merge(other, on=[*case, "ours"], validate="many_to_one")
    return both.assign(ratio=both["error_rel"] / both["error_of_ours"])


def over_ranks(rows: pd.DataFrame, how: str, keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """`x_single_device` of each case's ranks, as `how` says (max: the worst rank; mean), mean over seeds.

    The pooled norm (`rank` -1) hides them: under a causal mask rank 0 merges nothing, and has 59% of out's squared
    error at 8 ranks.

    Columns: the keys, `x_single_device`, and `half`, half of its 95% interval over seeds (Student's t; NaN: one seed).
    """
    single = rows[rows["rank"] >= 0]
    cases = single.groupby([*keys, "seed"], as_index=False, dropna=False)["x_single_device"].agg(how)
    seeds = cases.groupby(list(keys), dropna=False)["x_single_device"]
    return seeds.mean().to_frame().assign(half=half_interval(seeds)).reset_index()


def half_interval(seeds: "SeriesGroupBy[float, Any]") -> "pd.Series[float]":
    """Half a 95% interval of each group's mean over its seeds (Student's t; NaN: one seed)."""
    count = seeds.count()
    return stdtrit((count - 1).clip(lower=1), (1 + CONFIDENCE) / 2) * seeds.std() / np.sqrt(count)


def judge(experiment: str, results: pd.DataFrame) -> list[Claim]:
    """The experiment's claims, judged on `results`; none where it has no `claims.py`.

    A claims file that raises becomes one claim that does not hold, with the error as its evidence.
    """
    return _judged(experiment, "claims", results)


def judge_answer(experiment: str, results: pd.DataFrame) -> list[Claim]:
    """Of what the Answer of the experiment's README is made, judged on `results`: its claims.py says it, in
    `def answer(results: pandas.DataFrame) -> list[Claim]`, with every number of the Answer in a statement."""
    return _judged(experiment, "answer", results)


def _judged(experiment: str, function: str, results: pd.DataFrame) -> list[Claim]:
    path = paths.EXPERIMENTS / experiment / "claims.py"
    if not path.is_file():
        return []
    try:
        return [_checked(claim) for claim in runpy.run_path(str(path))[function](results.copy())]
    except Exception as error:  # of any kind: it is told where the claims are printed
        return [Claim(f"The claims of {experiment} can be judged.", False, f"{type(error).__name__}: {error}")]


def _checked(claim: object) -> Claim:
    if not isinstance(claim, Claim):
        raise TypeError(f"claims() returned a {type(claim).__name__}; allowed: experiments.claim.Claim")
    holds = None if claim.holds is None else bool(claim.holds)
    return Claim(str(claim.statement), holds, str(claim.evidence))
