"""The report: a run folder in, one self-contained report.html out. Reads tables only; torch is never imported."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from accuracy.chart.render import render
from accuracy.core.paths import whole_file
from accuracy.report import explorer, prose, sweep
from accuracy.report.answer.first_screen import Answer, answer
from accuracy.report.answer.stack import stack_answer
from accuracy.report.embedded import BUDGET_BYTES, EMPTY, encode_rows, summary_table
from accuracy.report.material import Material, material_of
from accuracy.report.section import environment
from accuracy.report.section.attribution import attribution_panels
from accuracy.report.section.condition import condition_panels
from accuracy.report.section.depth import stacks_section
from accuracy.report.section.missing import reasons
from accuracy.report.section.recommendation import recommendation_table
from accuracy.report.section.why import why
from accuracy.report.series import facets_of

PAGE = Path(__file__).parent / "page"
CHARTS = "plot.min.js"  # Observable Plot, of `make charts`
SCRIPTS = ("dom.js", "number.js", "data.js", "points.js", "state.js", "chart.js", "lines.js", "views.js", "matrix.js",
           "rows.js", "tables.js", "other.js", "start.js")  # fmt: skip
LIMIT_BYTES = 3_000_000
BYTES_OF_NOTES = 2_000


@dataclass(frozen=True)
class ReportSummary:
    """Where the report is, its first screen, and the verdicts of all that was measured."""

    path: Path
    answer: Answer
    verdicts: pd.DataFrame

    @property
    def lines(self) -> tuple[str, ...]:
        """The headline, what to do, and on what it was measured, for a terminal."""
        return tuple(
            filter(None, (self.answer.title, " ".join(self.answer.advice.striptags().split()), self.answer.facts))
        )


def write_report(folder: Path, to: Path | None = None, results: pd.DataFrame | None = None) -> ReportSummary:
    """Write the page, whole or not at all, to `folder/report.html` if nowhere else.

    results: of the folder, where they are known. Raises NoReport where the folder holds no results.
    """
    run = sweep.read(folder, results)
    made, path = material_of(run), to or folder / "report.html"
    first = answer_of(made)
    context = _always(made, first)
    if not run.results.empty:
        context |= _of_attention(made)
    write_page(path, _with_rows(context, made, first))
    return ReportSummary(path, first, made.judged.verdicts)


def answer_of(made: Material) -> Answer:
    """The first screen of a run."""
    return stack_answer(made.run, made.claims) if made.run.results.empty else answer(made)


def _always(made: Material, first: Answer) -> dict[str, Any]:
    """What every page has; `_of_attention` fills the rest where attention alone was measured."""
    run = made.run
    return {
        "run": run,
        "answer": first,
        "claims": made.claims,
        "passages": prose.passages(run.experiment),
        "environment": environment,
        "stacks": stacks_section(run.stacks),
        "reasons": reasons(run.cases),
    } | dict.fromkeys(("why", "judged", "attribution", "conditions", "take", "summary"))


def _of_attention(made: Material) -> dict[str, Any]:
    facets = facets_of(made.measured)
    return {
        "why": why(made.judged.found, made.measured),
        "judged": made.judged.panel,
        "attribution": attribution_panels(made.attributed),
        "conditions": condition_panels(made.measured),
        "take": [table for table in map(recommendation_table, facets) if table],
        "summary": summary_table(made.whole),
    }


def _with_rows(context: dict[str, Any], made: Material, first: Answer) -> bytes:
    """The page with as many rows as fit beside its other parts."""
    rows = explorer.rows_of(made)
    preset = explorer.preset_of(first.worst, rows)
    context["preset"] = json.dumps(preset.words if preset else {})
    profiles = explorer.profiles_of(rows, made.run.positions)
    free_bytes = max(0, LIMIT_BYTES - len(_render({**context, "block": EMPTY})) - BYTES_OF_NOTES)
    setting = preset.facet if preset else ""
    return _render({**context, "block": encode_rows(rows, min(BUDGET_BYTES, free_bytes), profiles, setting)})


def _render(context: dict[str, Any]) -> bytes:
    script = "".join((PAGE / name).read_text(encoding="utf-8") for name in (CHARTS, *SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own_style = Markup((PAGE / "explorer.css").read_text(encoding="utf-8"))
    return render(
        PAGE, "report.html.jinja", **context, script=Markup(script), script_digest=digest, own_style=own_style
    )


def write_page(path: Path, text: bytes) -> None:
    """Write a page whole or not at all."""
    with whole_file(path) as handle:
        handle.write(text)
