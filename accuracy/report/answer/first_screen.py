"""The answer: headline, advice, facts, key picture and matrix of a run of attention alone."""

from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import Chart, Table
from accuracy.core.number import count
from accuracy.report import prose
from accuracy.report.answer import words
from accuracy.report.answer.accused import Accused, accused
from accuracy.report.answer.facts import facts_line
from accuracy.report.answer.matrix import MARKS, matrix
from accuracy.report.answer.picture import Picture, Points, draw, numbers
from accuracy.report.folder import Run
from accuracy.report.material import Material
from accuracy.report.means import geometric_means
from accuracy.report.series import SINGLE_DEVICE, Facet, facets_of, short_names, slot_of
from accuracy.results.claim import answer_case, answer_holds
from accuracy.results.terms import defined

AGAIN = "The same command measures what is left."


@dataclass(frozen=True)
class Answer:
    """title: the finding; advice: cause and what to do; facts: one line; picture and matrix: of the case that the
    finding is about, which every view of the page opens on (worst; None for stacks)."""

    title: str
    advice: Markup
    facts: str
    picture: Chart | None = None
    points: Table | None = None
    matrix: Table | None = None
    more: str = ""
    marks: str = ""
    setting: str = ""
    worst: Accused | None = None

    @property
    def terms(self) -> str:
        """The words of the first screen, defined where they are first met."""
        table = self.matrix
        return defined(self.title, *((table.caption, *table.head) if table else ()))


def answer(made: Material) -> Answer:
    """Of a run that has rows of attention alone."""
    run, found, measured = made.run, made.judged.said, made.measured
    worst = accused(measured, words.blamed(found)) if len(measured) else None
    title, advice = headline(run, words.finding(found, worst, run.cases))
    if advice:  # the published answer may be about another case than the gravest
        worst = _of_answer(run, measured) or worst
    said = words.advice(found, worst, measured, made.attribution)
    advice = advice or Markup("{}").format(f"{AGAIN} {said}" if run.missing_cases and AGAIN not in said else said)
    facts = facts_line(run, made.claims)
    if worst is None:
        return Answer(title, advice, facts)
    facet = next(each for each in facets_of(measured) if each.label == worst.facet)
    table, more = matrix(facet, made.judged.cells, worst)
    picture = _picture(facet, worst)
    view = draw(picture), numbers(picture), table, more, MARKS, facet.label, worst
    return Answer(title, advice, facts, *view)


def _of_answer(run: Run, measured: pd.DataFrame) -> Accused | None:
    """The worst cell of the case that the published answer names; None where it names none that was measured."""
    case = answer_case(run.experiment)
    if not case or not {*case} <= {*measured.columns}:
        return None
    here = measured[[*case]].fillna("") == pd.Series(case)
    return accused(measured[here.all(axis=1)], None)


def headline(run: Run, made: str) -> tuple[str, Markup]:
    """The published answer with its advice where the table in hand bears it out, else what was made of the table."""
    title, advice = prose.answer(run.experiment)
    if title and answer_holds(run.experiment, run.rows):
        return title, advice
    return f"{incomplete(run)} {made}".strip(), Markup()


def incomplete(run: Run) -> str:
    """Said first: the page is about a part of what was planned."""
    if not run.missing_cases:
        return ""
    return f"Partial run ({len(run.cases):,} of {count(run.planned or 0, 'case')})."


def _picture(facet: Facet, worst: Accused) -> Picture:
    rows = facet.whole[facet.whole["tensor"] == worst.tensor]
    rows = rows if worst.alone else rows[rows["variant"] != SINGLE_DEVICE]
    means = geometric_means(rows, ["series", "world_size"], [worst.column])[worst.column]
    short = short_names(facet.series)
    lines: dict[str, Points] = {}
    for row in means[means > 0].reset_index().to_dict("records"):
        lines.setdefault(short[str(row["series"])], []).append((float(row["world_size"]), float(row[worst.column])))
    what = "the rounding floor" if worst.alone else "single device"
    variant = str(rows.loc[rows["series"] == worst.series, "variant"].iloc[0])
    title = f"Error of {worst.tensor}, {worst.dtype}, times {what}"
    return Picture(title, "ranks", lines, short[worst.series], slot_of(variant, worst.kernel if worst.alone else ""))
