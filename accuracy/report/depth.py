"""The report of a run of stacks: errors by layer, by depth and by world size. Reads tables only, without torch."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from accuracy.report import experiment
from accuracy.report.build import ReportSummary, page, write_page
from accuracy.report.folder import NoReport, Run, read_record
from accuracy.report.section import environment
from accuracy.report.section.depth import losses, settings_panels
from accuracy.results import layers
from accuracy.results.claim import Claim, judge


def write_report(folder: Path, to: Path | None = None) -> ReportSummary:
    """Write the page, whole or not at all, to `folder/report.html` if nowhere else. Raises NoReport where the folder
    holds no stacks."""
    try:
        rows = layers.read(folder)
    except (OSError, pa.ArrowException) as error:
        raise NoReport(
            f"{folder}: its table of layers cannot be read ({' '.join(str(error).split())[:200]})"
        ) from error
    if rows.empty:
        raise NoReport(f"{folder}: holds no stacks; give the output_dir of a run with stack.layers")
    run = Run(rows, pd.DataFrame(), *read_record(folder))
    claims = judge(run.experiment, rows)
    context: dict[str, Any] = {
        "run": run,
        "claims": claims,
        "passages": experiment.passages(run.experiment),
        "panels": settings_panels(run.results),
        "losses": losses(run.results),
        "unmeasured": run.cases[run.cases["status"] != "ok"]["reason"].value_counts().to_dict(),
        "environment": environment,
    }
    path = to or folder / "report.html"
    write_page(path, page("depth.html.jinja", context))
    return ReportSummary(path, tuple(_line(claim) for claim in claims))


def _line(claim: Claim) -> str:
    word = {None: "cannot be judged", True: "holds", False: "does not hold"}[claim.holds]
    return f"{word}: {claim.statement} ({claim.evidence})"
