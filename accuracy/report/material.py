"""What all parts of a page are made of: a run's labelled rows, its claims and its verdicts."""

from dataclasses import dataclass

import pandas as pd

from accuracy.report import series
from accuracy.report.folder import Run
from accuracy.report.worst import furthest_first
from accuracy.results.claim import Claim, judge
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.attribution import Attribution, attributions
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import NOT_MEASURED
from accuracy.verdict.rows import in_blocks, names_of, with_names
from accuracy.verdict.verdict import verdicts


@dataclass(frozen=True)
class Material:
    """labelled: the rows, each with its series and facet; measured: those with numbers, with the
    variant's name in the column `named`. verdicts: of all cells; cells: of what was measured, with `named`; found: the
    facts of each variant, gravest first."""

    run: Run
    claims: list[Claim]
    labelled: pd.DataFrame
    measured: pd.DataFrame
    verdicts: pd.DataFrame
    cells: pd.DataFrame
    found: list[Facts]
    attributed: list[Attribution]

    @property
    def whole(self) -> pd.DataFrame:
        """The measured rows over all ranks."""
        return self.measured[self.measured["rank"] == ALL_RANKS]


def material_of(run: Run) -> Material:
    """Labelled and judged."""
    names = names_of(run.results)
    labelled = in_blocks(series.in_reading_order(series.with_labels(with_names(run.results, names))))
    measured = labelled[labelled["case_id"].isin(run.measured["case_id"]) & labelled["tensor"].notna()]
    judged = verdicts(run.results)
    cells = with_names(judged[judged["label"] != NOT_MEASURED], names)
    found = [] if cells.empty else diagnoses(cells.drop(columns="named"), run.results, run.steps, run.hypotheses)
    found = furthest_first(found, measured)
    claims = judge(run.experiment, run.results, judged)
    attributed = attributions(run.results)
    return Material(
        run,
        claims,
        labelled.drop(columns="named"),
        measured,
        judged,
        cells,
        found,
        attributed,
    )
