"""The report: a run folder in, one self-contained report.html out. Reads tables only; torch is never imported."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import render
from accuracy.core.paths import whole_file
from accuracy.report import about, explorer, first_screen
from accuracy.report.drift import drift_of
from accuracy.report.explorer import BUDGET_BYTES, EMPTY, encode_rows
from accuracy.report.first_screen import Answer
from accuracy.report.folder import Material, material_of, read_folder
from accuracy.report.why import why

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
    problem: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """For a terminal: what is wrong with the folder, the verdict, its numbers, what to do, what was measured."""
        answer = self.answer
        told = "; ".join(" ".join(tile) for tile in answer.tiles)
        more = f"{answer.command} names the step." if answer.command else ""
        wrong = f"warning: {self.problem}" if self.problem else ""
        return tuple(filter(None, (wrong, f"{answer.badge}: {answer.title}", told, answer.advice, more, answer.facts)))


def write_report(folder: Path, to: Path | None = None, results: pd.DataFrame | None = None) -> ReportSummary:
    """Write the page, whole or not at all, to `folder/report.html` if nowhere else.

    results: of the folder, where they are known. Raises NoReport where the folder holds no results.
    """
    made, path = material_of(read_folder(folder, results)), to or folder / "report.html"
    drift = drift_of(made.run.results)
    answer = first_screen.answer(made, drift)
    write_page(path, _with_rows(_parts(made) | {"answer": answer, "drift": drift}, made, answer))
    return ReportSummary(path, answer, made.verdicts, made.run.problem)


def _parts(made: Material) -> dict[str, Any]:
    """What the templates lay out beside the first screen and the rows."""
    run = made.run
    return {
        "run": run,
        "environment": about.environment(run.record),
        "reasons": about.reasons(run.cases),
        "why": why(made),
    }


def _with_rows(parts: dict[str, Any], made: Material, answer: Answer) -> bytes:
    """The page with as many rows as fit beside its other parts."""
    rows = explorer.rows_of(made)
    preset = explorer.preset_of(answer.worst)
    parts["preset"] = json.dumps(preset)
    profiles = explorer.profiles_of(rows, made.run.positions)
    free_bytes = max(0, LIMIT_BYTES - len(_render({**parts, "block": EMPTY})) - BYTES_OF_NOTES)
    block = encode_rows(rows, min(BUDGET_BYTES, free_bytes), profiles, preset.get("facet", ""))
    return _render({**parts, "block": block})


def _render(parts: dict[str, Any]) -> bytes:
    script = "".join((PAGE / name).read_text(encoding="utf-8") for name in (CHARTS, *SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = Markup((PAGE / "explorer.css").read_text(encoding="utf-8"))
    return render(PAGE, "report.html.jinja", **parts, script=Markup(script), script_digest=digest, own_style=style)


def write_page(path: Path, text: bytes) -> None:
    """Write a page whole or not at all."""
    with whole_file(path) as handle:
        handle.write(text)
