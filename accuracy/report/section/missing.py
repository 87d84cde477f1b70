"""Section: what has no numbers, and why? Failed and unsupported cases, grouped by reason."""

import shlex
from dataclasses import dataclass

import pandas as pd

from accuracy.core import fields
from accuracy.core.number import count
from accuracy.results.table import FAILED, UNSUPPORTED


@dataclass(frozen=True)
class Reason:
    """Cases that share a status and a reason. command: how to try the first again if it failed; what is unsupported
    would be so again."""

    status: str
    reason: str
    heading: str
    command: str


def reasons(cases: pd.DataFrame) -> list[Reason]:
    """Failed first, then by number of cases."""
    rows = cases[cases["status"].isin([FAILED, UNSUPPORTED])].fillna({"reason": "no reason given"})
    found = []
    for (status, reason), group in rows.groupby(["status", "reason"]):
        again = command(group.iloc[0].to_dict()) if status == FAILED else ""
        heading = f"{count(len(group), 'case')} {status}"
        found.append((-len(group), Reason(str(status), str(reason), heading, again)))
    found.sort(key=lambda pair: (pair[1].status != FAILED, pair[0], pair[1].reason))
    return [each for _, each in found]


def command(row: fields.Row) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...`, quoted for a POSIX shell: what measures one row of the results table
    again; missing columns are left out."""
    return shlex.join(["accuracy", *fields.words(row)])
