"""How a run ends: its report, and the diagnosis of each variant. Both are made of the same rows and verdicts."""

from typing import TYPE_CHECKING

from accuracy.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.execute.run import Outcome


def report(outcome: "Outcome") -> "pd.DataFrame | None":
    """Write it, print its first screen; the run's verdicts, None where there is nothing to report on."""
    from accuracy.report.build import write_report

    try:
        summary = write_report(outcome.folder, results=outcome.results)
    except ConfigError as error:  # interrupted before the first case
        print(f"no report: {error}")
        return None
    print("", *summary.lines, "", f"report: {summary.path}", sep="\n")
    return summary.verdicts


def diagnosed(outcome: "Outcome", planned: set[str], verdicts: "pd.DataFrame | None") -> tuple[bool, bool]:
    """Print each variant's diagnosis; return whether one is a bug, and whether one rank alone of several was measured.
    verdicts: the report's, where there is one."""
    from accuracy.results import table
    from accuracy.verdict import verdict
    from accuracy.verdict.diagnosis import diagnoses, sentences
    from accuracy.verdict.label import TOO_LITTLE

    folder, results = outcome.folder, outcome.results
    results = table.read_results(folder) if results is None else results
    results = results[results["case_id"].isin(planned) & ~table.in_stacks(results)]
    verdicts = verdict.verdicts(results) if verdicts is None else verdicts
    found = diagnoses(verdicts, results, table.read_side(folder, "steps"), table.read_side(folder, "hypotheses"))
    told = zip(sentences(found), found, strict=True)
    print("", *(line for sentence, each in told for line in (sentence, *each.evidence)), sep="\n")
    return any(each.is_bug for each in found), any(each.label in TOO_LITTLE for each in found)
