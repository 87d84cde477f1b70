"""What does an experiment claim, and does the table bear it out?

An experiment's folder may hold `claims.py` with `def claims(results: pandas.DataFrame) -> list[Claim]`. In goes the
table of a run, out come statements with the evidence for or against each. No torch here.
"""

import inspect
import re
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.core import fields, paths


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


def largest_below(statement: str, rows: pd.DataFrame, bound: float, column: str = "x_single_device") -> Claim:
    """Whether a column's largest value is below a bound; the evidence says what it is and where."""
    if rows.empty:
        return Claim(statement, None, "not measured")
    worst = rows.iloc[int(rows[column].argmax())]
    return Claim(statement, bool(worst[column] < bound), f"largest: {worst[column]:.3f} ({place_of(worst)})")


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
    case = [*fields.names_but(fields.VARIANT), "tensor", "rank", "layer"]
    named = rows[rows["variant"].isin(twins)].assign(ours=lambda each: each["variant"].map(twins))
    other = rows[[*case, "variant", "error_rel"]].rename(columns={"variant": "ours", "error_rel": "error_of_ours"})
    both = named.merge(other, on=[*case, "ours"], validate="many_to_one")
    return both.assign(ratio=both["error_rel"] / both["error_of_ours"])


def experiment_folder(name: object) -> Path | None:
    """The folder of the experiment called `name`, or None. The name comes from a file: it is not trusted."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]+", name):
        return None
    folder = paths.EXPERIMENTS / name
    return folder if folder.is_dir() else None


def judge(experiment: object, results: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> list[Claim]:
    """The experiment's claims, judged on `results`; none where it has no `claims.py`. verdicts: those of the results,
    for a `claims(results, verdicts)`, which makes its own where there are none.

    A claims file that raises becomes one claim that does not hold, with the error as its evidence.
    """
    return _judged(experiment, "claims", results, verdicts)


def answer_holds(experiment: object, results: pd.DataFrame) -> bool:
    """Whether `results` bear out the Answer of the experiment's README: all of what it is made of holds."""
    found = judge_answer(experiment, results)
    return bool(found) and all(claim.holds for claim in found)


def judge_answer(experiment: object, results: pd.DataFrame) -> list[Claim]:
    """Of what the Answer of the experiment's README is made, judged on `results`: its claims.py says it, in
    `def answer(results: pandas.DataFrame) -> list[Claim]`, with every number of the Answer in a statement."""
    return _judged(experiment, "answer", results)


def answer_case(experiment: object) -> dict[str, Any]:
    """What the Answer is about: column -> value, `CASE` of the experiment's claims.py; empty where that has none."""
    folder = experiment_folder(experiment)
    if folder is None or not (folder / "claims.py").is_file():
        return {}
    try:
        return dict(runpy.run_path(str(folder / "claims.py")).get("CASE", {}))
    except Exception:  # as above
        return {}


def _judged(
    experiment: object, function: str, results: pd.DataFrame, verdicts: pd.DataFrame | None = None
) -> list[Claim]:
    folder = experiment_folder(experiment)
    if folder is None or not (folder / "claims.py").is_file():
        return []
    try:
        claims = runpy.run_path(str(folder / "claims.py"))[function]
        takes = verdicts is not None and "verdicts" in inspect.signature(claims).parameters
        found = claims(results.copy(), **({"verdicts": verdicts} if takes else {}))
        return [_checked(claim) for claim in found]
    except Exception as error:  # whatever a claims file does wrong must not cost the run its report
        return [Claim(f"The claims of {folder.name} can be judged.", False, f"{type(error).__name__}: {error}")]


def _checked(claim: object) -> Claim:
    if not isinstance(claim, Claim):
        raise TypeError(f"claims() returned a {type(claim).__name__}; allowed: accuracy.results.claim.Claim")
    holds = None if claim.holds is None else bool(claim.holds)
    return Claim(str(claim.statement), holds, str(claim.evidence))
