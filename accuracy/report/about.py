"""What was measured on what, by which command, and what has no numbers? A line of facts, and the folded sections."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.number import count
from accuracy.report.folder import Run
from accuracy.results.table import FAILED, OK, UNSUPPORTED

MOST_VALUES = 4


def facts_line(run: Run) -> str:
    """Device, kernel, mask, tokens, heads, dtypes and seeds in short words, joined by a dot."""
    every = run.cases
    cases = every[every["status"] == OK] if (every["status"] == OK).any() else every
    provenance = run.record.get("provenance")
    device = provenance.get("device_name") if isinstance(provenance, dict) else None
    parts = (
        str(device or _listed(cases["device"].dropna(), "device")),
        _listed(cases["kernel"], "kernel"),
        _listed(cases["mask"], "mask"),
        _tokens(cases["seqlen"]),
        _heads(cases),
        _listed(sorted(cases["dtype"].unique(), key=lambda name: DTYPES[name].precision), "dtype"),
        count(cases["seed"].nunique(), "seed"),
    )
    return " · ".join(filter(None, parts))


def _listed(values: Iterable[Any], word: str) -> str:
    names = list(dict.fromkeys(map(str, values)))
    return ", ".join(names) if len(names) <= MOST_VALUES else f"{len(names)} {word}s"


def _tokens(values: "pd.Series[int]") -> str:
    numbers = sorted(map(int, values.dropna().unique()))
    if len(numbers) > MOST_VALUES:
        return f"{numbers[0]:,} to {numbers[-1]:,} tokens"
    return f"{', '.join(f'{number:,}' for number in numbers)} tokens" if numbers else ""


def _heads(cases: pd.DataFrame) -> str:
    shapes = cases[["heads", "heads_kv", "head_dim"]].dropna().drop_duplicates().astype(int)
    named = [f"{heads} heads{f' ({kv} of keys)' if kv != heads else ''} of {dim}" for heads, kv, dim in shapes.values]
    return named[0] if len(named) == 1 else f"{len(named)} shapes of heads" if named else ""


@dataclass(frozen=True)
class Reason:
    """Cases that share a status and a reason. command: how to try the first again if it failed; what is unsupported
    would be so again."""

    status: str
    reason: str
    heading: str
    command: str


def reasons(cases: pd.DataFrame) -> list[Reason]:
    """Why cases have no numbers: failed ones first, then by number of cases."""
    rows = cases[cases["status"].isin([FAILED, UNSUPPORTED])].fillna({"reason": "no reason given"})
    found = []
    for (status, reason), group in rows.groupby(["status", "reason"]):
        again = command(group.iloc[0].to_dict()) if status == FAILED else ""
        found.append((len(group), Reason(str(status), str(reason), f"{count(len(group), 'case')} {status}", again)))
    found.sort(key=lambda pair: (pair[1].status != FAILED, -pair[0], pair[1].reason))
    return [each for _, each in found]


def command(row: fields.Row) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...`, quoted for a POSIX shell: what measures one row of the results table
    again; missing columns are left out."""
    return shlex.join(["accuracy", *fields.words(row)])


def environment(record: Mapping[str, Any]) -> dict[str, str]:
    """What run.json says of a run's environment: the command as it was typed; as indented JSON the versions, the device
    and the settings that change arithmetic, and the resolved configuration, empty where they were not recorded."""
    written = {name: json.dumps(record[name], indent=2, default=str, ensure_ascii=False) if record.get(name) else ""
               for name in ("provenance", "config")}  # fmt: skip
    return {"command": str(record.get("command") or "not recorded"), **written}
