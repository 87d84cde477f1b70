"""What all parts of a page are made of: a run's labelled rows, its claims and its verdicts."""

from dataclasses import dataclass, replace

import pandas as pd

from accuracy.report import series
from accuracy.report.answer.worst import furthest_first
from accuracy.report.folder import Run
from accuracy.report.section import verdict
from accuracy.report.section.verdict import Judged
from accuracy.results.claim import Claim, judge
from accuracy.verdict.attribution import Attribution, attributions
from accuracy.verdict.rows import in_blocks, names_of, with_names


@dataclass(frozen=True)
class Material:
    """labelled: the rows of attention alone, each with its series and facet; measured: those with numbers, with the
    variant's name in the column `named`."""

    run: Run
    claims: list[Claim]
    labelled: pd.DataFrame
    measured: pd.DataFrame
    judged: Judged
    attributed: list[Attribution]

    @property
    def whole(self) -> pd.DataFrame:
        """The measured rows over all ranks."""
        return self.measured[self.measured["rank"] == -1]


def material_of(run: Run) -> Material:
    """Labelled and judged."""
    named = with_names(run.results, names_of(run.results))
    labelled = in_blocks(series.in_reading_order(series.with_labels(named)))
    measured = labelled[labelled["case_id"].isin(run.measured["case_id"]) & labelled["tensor"].notna()]
    judged = verdict.judge(run.results, run.positions, run.steps, run.hypotheses)
    claims = judge(run.experiment, run.rows, None if len(run.stacks) else judged.verdicts)
    judged = replace(judged, found=furthest_first(judged.found, measured))
    return Material(run, claims, labelled.drop(columns="named"), measured, judged, attributions(run.results))
