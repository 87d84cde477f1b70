"""The first screen of a run: badge, title, numbers and advice; its picture and matrix are drawn from the rows."""

import shlex
from dataclasses import dataclass

import pandas as pd

from accuracy.core import fields
from accuracy.report import about
from accuracy.report.drift import Drift
from accuracy.report.folder import DIAGNOSE, Material, Run
from accuracy.report.series import geometric_means
from accuracy.report.worst import JUDGED, worst_cell
from accuracy.results.glossary import defined
from accuracy.results.table import ALL_RANKS, FAILED, OK, UNSUPPORTED
from accuracy.verdict import headline as template
from accuracy.verdict.facts import Facts, Worst
from accuracy.verdict.headline import Tile
from accuracy.verdict.label import NOTHING_FOUND, tone

BEYOND_IS_A_FACT = "Beyond is a fact, no bug by itself: a path that keeps its scores in 16 bits is further away, too."
AGAIN = "The same command measures what is left."
NEARER = 0.8  # of the worst cell's ratio: a variant to take instead is better by more than seeds differ


@dataclass(frozen=True)
class Answer:
    """badge, title, tiles: the verdict and its numbers; advice: cause and what to do; command: what names the step that
    is wrong; facts: one line; terms: its words, defined; worst: the case that the verdict is about, which every view of
    the page opens on."""

    badge: str
    title: str
    tiles: tuple[Tile, ...]
    advice: str
    command: str
    facts: str
    terms: str = ""
    worst: Worst | None = None

    @property
    def tone(self) -> str:
        """The badge's class."""
        return tone(self.badge)


def answer(made: Material, drift: Drift | None = None) -> Answer:
    """Of a run that has rows of attention alone."""
    run, measured = made.run, made.measured
    blamed = template.blamed(made.found)
    worst = worst_cell(measured, blamed) if len(measured) else None
    size = int(measured["world_size"].max()) if len(measured) else 0
    tiles = template.tiles(made.found, worst, size, _cases(run))
    title, badge = template.title(made.found, worst, size), template.badge(made.found, bool(run.missing_cases))
    command = _command(blamed, made, worst) if blamed and blamed.is_bug and run.experiment != DIAGNOSE else ""
    instead = _alternative(worst, measured, made.found) if worst else None
    text = template.advice(made.found, worst, instead, _reason(run.cases))
    text = f"{AGAIN} {text}" if run.missing_cases and AGAIN not in text else text
    advice = BEYOND_IS_A_FACT if drift and not blamed and worst else text
    tiles = (*drift.tiles, tiles[0], tiles[-1]) if drift else tiles
    words = defined(*(tile.label for tile in tiles), *measured["tensor"].unique())
    return Answer(badge, title, tiles, advice, command, about.facts_line(run), words, worst)


def _cases(run: Run) -> dict[str, int]:
    """Count the cases that were measured, failed, were unsupported or have no row yet, in this order."""
    status = run.cases["status"].value_counts()
    found = {name: int(status.get(name, 0)) for name in (OK, FAILED, UNSUPPORTED)}
    return {**found, "not yet": run.missing_cases}


def _reason(cases: pd.DataFrame) -> str:
    """The most frequent reason of failed cases, else of the others without numbers."""
    failed = cases[cases["status"] == FAILED]
    return str(next(iter((failed if len(failed) else cases)["reason"].dropna().mode()), ""))


def _command(blamed: Facts, made: Material, worst: Worst | None) -> str:
    """What diagnoses a variant on the command line; a user's function by its file or module, layout and sharding."""
    variant = made.cells.loc[made.cells["named"] == blamed.variant, "variant"].iloc[0]
    own = made.measured[(made.measured["variant"] == variant) & made.measured["options"].map(fields.is_foreign)]
    words = [word for row in own.head(1).to_dict("records") for word in fields.words(row) if word.startswith("variant")]
    kernel = [f"kernel={worst.kernel}"] if worst and worst.alone else []
    return shlex.join(["accuracy", f"experiment={DIAGNOSE}", *(words or [f"variant={variant}"]), *kernel])


def _alternative(worst: Worst, measured: pd.DataFrame, found: list[Facts]) -> tuple[str, float] | None:
    """Of sound variants the most accurate on as many ranks, by its worst tensor; None where none is clearly better."""
    sound = measured["named"].isin([each.variant for each in found if each.label in NOTHING_FOUND])
    here = measured[sound & (measured["rank"] == ALL_RANKS) & (measured["facet"] == worst.facet)]
    here = here[(here["world_size"] == worst.world_size) & (here["world_size"] > 1) & here["tensor"].isin(JUDGED)]
    ratios = geometric_means(here, ["named", "tensor"], ["x_single_device"])["x_single_device"]
    ratios = ratios.groupby("named").max().dropna()
    if ratios.empty or ratios.min() > NEARER * worst.times:
        return None
    return str(ratios.idxmin()), float(ratios.min())
