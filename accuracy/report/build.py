"""The report: a run folder in, one self-contained report.html out. Reads tables only; torch is never imported."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from accuracy.chart.render import render
from accuracy.chart.view import Panel
from accuracy.core.paths import whole_file
from accuracy.report import prose, series, sweep
from accuracy.report.answer.first_screen import Answer, answer
from accuracy.report.answer.stack import stack_answer
from accuracy.report.embedded import BUDGET_BYTES, EMPTY, encode_rows, summary_table
from accuracy.report.material import Material, material_of
from accuracy.report.section import environment
from accuracy.report.section.attribution import attribution_panels
from accuracy.report.section.condition import condition_panels
from accuracy.report.section.cost import cost_panel
from accuracy.report.section.depth import stacks_section
from accuracy.report.section.growth import growth_panel
from accuracy.report.section.heatmap import heatmap_panel
from accuracy.report.section.history import history_of
from accuracy.report.section.missing import reasons
from accuracy.report.section.positions import position_panel
from accuracy.report.section.ranks import rank_panel
from accuracy.report.section.why import why
from accuracy.report.series import MOST_DETAILED_FACETS, MOST_FACETS, Facet

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("facets.js", "data.js", "ranks.js", "rows.js", "start.js")
LIMIT_BYTES = 5_000_000
BYTES_OF_NOTES = 2_000


@dataclass(frozen=True)
class ReportSummary:
    """Where the report is, and its first screen."""

    path: Path
    answer: Answer

    @property
    def lines(self) -> tuple[str, ...]:
        """The headline, what to do, and on what it was measured, for a terminal."""
        return tuple(
            filter(None, (self.answer.title, " ".join(self.answer.advice.striptags().split()), self.answer.facts))
        )


def write_report(folder: Path, earlier: Sequence[Path] = (), to: Path | None = None) -> ReportSummary:
    """Write the page, whole or not at all, to `folder/report.html` if nowhere else.

    earlier: runs to look back on, oldest first.

    Raises NoReport where the folder holds no results, ConfigError where one of the earlier cannot be read.
    """
    run = sweep.read(folder)
    made, path = material_of(run), to or folder / "report.html"
    first = answer_of(made)
    context = {
        "run": run,
        "answer": first,
        "claims": made.claims,
        "passages": prose.passages(run.experiment),
        "environment": environment,
        "stacks": stacks_section(run.stacks),
        "reasons": reasons(run.cases),
    }
    if run.results.empty:
        write_page(path, render(PAGE, "depth.html.jinja", **context))
        return ReportSummary(path, first)
    context |= {
        "why": why(made.judged.said),
        "judged": made.judged.panel,
        "attribution": attribution_panels(made.attributed),
        "summary": summary_table(made.whole),
        "history": history_of(folder, earlier),
    }
    for most in (MOST_FACETS, 1):  # a run of very many variants and settings: draw the first setting only
        text = _with_rows(context | _panels(made, first, most), made.labelled)
        if len(text) <= LIMIT_BYTES:
            break
    write_page(path, text)
    return ReportSummary(path, first)


def answer_of(made: Material) -> Answer:
    """The first screen of a run."""
    return stack_answer(made.run, made.claims) if made.run.results.empty else answer(made)


def _with_rows(context: dict[str, Any], labelled: pd.DataFrame) -> bytes:
    """The page with as many rows as fit beside its other parts."""
    free_bytes = max(0, LIMIT_BYTES - len(_render({**context, "block": EMPTY})) - BYTES_OF_NOTES)
    return _render({**context, "block": encode_rows(labelled, min(BUDGET_BYTES, free_bytes))})


def _panels(made: Material, first: Answer, most: int) -> dict[str, Any]:
    facets = sorted(series.facets_of(made.measured), key=lambda facet: facet.label != first.setting)
    pairs = [(facet, series.legible(facet, wanted=first.series)) for facet in facets[:most]]
    slots = series.slots_of(pd.concat([drawn.rows for _, drawn in pairs] or [made.measured]))
    few = min(most, MOST_DETAILED_FACETS)

    def each(panel: Callable[[Facet, Facet], Panel | None], number: int = most) -> list[Panel]:
        drawn = [(panel(facet, drawn), series.left_out(facet, drawn)) for facet, drawn in pairs[:number]]
        return [
            replace(view, note=f"{view.note} {left if view.charts else ''}".strip()) for view, left in drawn if view
        ]

    by_rank = each(lambda _, drawn: rank_panel(drawn, slots), few)  # absolute errors of the headline's setting only
    conditions = condition_panels(made.measured, slots)
    return {
        "omitted": series.omitted_facets(facets, most),
        "omitted_details": series.omitted_facets(facets, few),
        "omitted_positions": series.omitted_facets(facets, 1),
        "growth": each(lambda facet, drawn: growth_panel(facet, drawn, slots)),
        "heatmap": each(lambda facet, _: heatmap_panel(facet)),
        "ranks": [replace(view, further=view.further if not place else ()) for place, view in enumerate(by_rank)],
        "positions": each(lambda _, drawn: position_panel(drawn, made.run.positions, slots), 1),
        "conditions": sorted(conditions, key=lambda panel: panel.label.split(",")[0] != first.setting.split(" ")[0]),
        "cost": each(lambda facet, drawn: cost_panel(facet, drawn, slots)),
    }


def _render(context: dict[str, Any]) -> bytes:
    script = "".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(PAGE, "report.html.jinja", **context, script=Markup(script), script_digest=digest)


def write_page(path: Path, text: bytes) -> None:
    """Write a page whole or not at all."""
    with whole_file(path) as handle:
        handle.write(text)
