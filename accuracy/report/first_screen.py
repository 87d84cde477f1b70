"""The first screen of a run: headline, advice, facts, key picture and matrix."""

from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import Chart, Table
from accuracy.core import fields
from accuracy.core.number import count
from accuracy.report import prose
from accuracy.report.about import facts_line
from accuracy.report.folder import Material, Run
from accuracy.report.matrix import JUDGED, MARKS, matrix, worst_cell
from accuracy.report.picture import Picture, draw, lines_of, numbers
from accuracy.report.series import SINGLE_DEVICE, Facet, facets_of, geometric_means, short_names, slot_of
from accuracy.results.claim import answer_case, answer_holds
from accuracy.results.glossary import defined
from accuracy.results.table import ALL_RANKS, FAILED, OK
from accuracy.verdict import headline as template
from accuracy.verdict.facts import Facts, Worst
from accuracy.verdict.label import NOTHING_FOUND

AGAIN = "The same command measures what is left."
NEARER = 0.8  # of the worst cell's ratio: a variant to take instead is better by more than seeds differ


@dataclass(frozen=True)
class Answer:
    """title: the finding; advice: cause and what to do; facts: one line; picture and matrix: of the case that the
    finding is about, which every view of the page opens on (worst)."""

    title: str
    advice: Markup
    facts: str
    picture: Chart | None = None
    points: Table | None = None
    matrix: Table | None = None
    more: str = ""
    marks: str = ""
    worst: Worst | None = None

    @property
    def terms(self) -> str:
        """The words of the first screen, defined where they are first met."""
        table = self.matrix
        return defined(self.title, *((table.caption, *table.head) if table else ()))


def answer(made: Material) -> Answer:
    """Of a run that has rows of attention alone."""
    run, measured = made.run, made.measured
    blamed = template.blamed(made.found)
    worst = worst_cell(measured, blamed) if len(measured) else None
    title, advice = headline(run, finding(run.cases, made.found, worst))
    if advice:  # the published answer may be about another case than the gravest
        worst = _of_answer(run, measured) or worst
    else:
        chosen = _chosen(blamed, made.cells, measured) if blamed else ""
        instead = _alternative(worst, measured, made.found) if worst else None
        text = template.advice(made.found, worst, chosen, instead, template.attributed(made.attributed))
        advice = Markup("{}").format(f"{AGAIN} {text}" if run.missing_cases and AGAIN not in text else text)
    facts = facts_line(run, made.claims)
    if worst is None:
        return Answer(title, advice, facts)
    facet = next(each for each in facets_of(measured) if each.label == worst.facet)
    picture = _picture(facet, worst)
    table, more = matrix(facet, made.cells, worst)
    return Answer(title, advice, facts, draw(picture), numbers(picture), table, more, MARKS, worst)


def _of_answer(run: Run, measured: pd.DataFrame) -> Worst | None:
    """The worst cell of the case that the published answer names; None where it names none that was measured."""
    case = answer_case(run.experiment)
    if not case or not {*case} <= {*measured.columns}:
        return None
    here = measured[[*case]].fillna("") == pd.Series(case)
    return worst_cell(measured[here.all(axis=1)], None)


def finding(cases: pd.DataFrame, found: list[Facts], worst: Worst | None) -> str:
    """The headline where no published answer is held by the table."""
    measured = cases.loc[cases["status"] == OK, "world_size"]
    if len(measured):
        return template.headline(found, worst, JUDGED, [*measured])
    failed = cases[cases["status"] == FAILED]
    reasons = (failed if len(failed) else cases)["reason"].dropna().mode()
    return template.nothing(len(failed), len(cases) - len(failed), next(iter(reasons), ""))


def _chosen(blamed: Facts, cells: pd.DataFrame, measured: pd.DataFrame) -> str:
    """How the command line chooses a variant; a user's function by its file or module, layout and sharding."""
    variant = cells.loc[cells["named"] == blamed.variant, "variant"].iloc[0]
    own = measured[(measured["variant"] == variant) & measured["options"].map(fields.is_foreign)]
    words = [word for row in own.head(1).to_dict("records") for word in fields.words(row)]
    return " ".join(word for word in words if word.startswith("variant")) or f"variant={variant}"


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


def headline(run: Run, made: str) -> tuple[str, Markup]:
    """The published answer with its advice where the table in hand bears it out; else what was made of the table, after
    how much of a partial run it is about."""
    title, advice = prose.answer(run.experiment)
    if title and answer_holds(run.experiment, run.results):
        return title, advice
    part = f"Partial run ({len(run.cases):,} of {count(run.planned or 0, 'case')})." if run.missing_cases else ""
    return f"{part} {made}".strip(), Markup()


def _picture(facet: Facet, worst: Worst) -> Picture:
    rows = facet.whole[facet.whole["tensor"] == worst.tensor]
    rows = rows if worst.alone else rows[rows["variant"] != SINGLE_DEVICE]
    means = geometric_means(rows, ["series", "world_size"], [worst.column])[worst.column]
    short = short_names(facet.series)
    lines = lines_of(means[means > 0].rename(index=short, level="series"))
    what = "the rounding floor" if worst.alone else "single device"
    variant = str(rows.loc[rows["series"] == worst.series, "variant"].iloc[0])
    title = f"Error of {worst.tensor}, {worst.dtype}, times {what}"
    return Picture(title, "ranks", lines, short[worst.series], slot_of(variant, worst.kernel if worst.alone else ""))
