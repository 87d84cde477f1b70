"""Section: what has no numbers, and why? Failed and unsupported cases, grouped by reason."""

from dataclasses import dataclass

import pandas as pd

from accuracy.core.number import count
from accuracy.report.reproduce import command
from accuracy.results.table import FAILED, UNSUPPORTED

MOST_CASES_NAMED = 12


@dataclass(frozen=True)
class Reason:
    """Cases that share a status and a reason. commands: how to try the first few again."""

    status: str
    reason: str
    heading: str
    commands: tuple[str, ...]
    more: int


def reasons(cases: pd.DataFrame) -> list[Reason]:
    """Failed first, then by number of cases."""
    rows = cases[cases["status"].isin([FAILED, UNSUPPORTED])]
    found = []
    for (status, reason), group in rows.fillna({"reason": "no reason given"}).groupby(["status", "reason"]):
        found.append((str(status) != FAILED, -len(group), str(reason), _reason(str(status), str(reason), group)))
    return [item[-1] for item in sorted(found, key=lambda item: item[:3])]


def _reason(status: str, reason: str, group: pd.DataFrame) -> Reason:
    commands = tuple(command(row) for row in group.head(MOST_CASES_NAMED).to_dict("records"))
    heading = f"{count(len(group), 'case')} {status}"
    return Reason(status, reason, heading, commands, max(0, len(group) - MOST_CASES_NAMED))
