"""What was measured on what, by which command, and what has no numbers? A line of facts and two folded sections."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.chart.view import Table, cells
from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.number import count
from accuracy.report.folder import Run
from accuracy.results.claim import Claim
from accuracy.results.table import FAILED, OK, UNSUPPORTED

MOST_VALUES = 4


def facts_line(run: Run, claims: list[Claim]) -> str:
    """Device, kernel, mask, tokens, heads, dtypes, seeds and claims in short words, joined by a dot."""
    every, held = run.cases, [claim.holds for claim in claims]
    open_ = f" ({held.count(None)} cannot be judged here)" if None in held else ""
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
        f"claims held: {held.count(True)} of {len(held) - held.count(None)}{open_}" if held else "",
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
        heading = f"{count(len(group), 'case')} {status}"
        found.append((-len(group), Reason(str(status), str(reason), heading, again)))
    found.sort(key=lambda pair: (pair[1].status != FAILED, pair[0], pair[1].reason))
    return [each for _, each in found]


def command(row: fields.Row) -> str:
    """`accuracy variant=ring dtype=bfloat16 ...`, quoted for a POSIX shell: what measures one row of the results table
    again; missing columns are left out."""
    return shlex.join(["accuracy", *fields.words(row)])


@dataclass(frozen=True)
class Environment:
    """command: as it was typed, as far as the record tells; provenance: versions, device and the settings that change
    arithmetic; configuration: resolved, as indented JSON, empty where it was not recorded."""

    command: str
    provenance: Table
    configuration: str


def environment(record: Mapping[str, Any]) -> Environment:
    """What run.json says of a run's environment."""
    provenance, config = record.get("provenance"), record.get("config")
    pairs = _flat(provenance) if isinstance(provenance, Mapping) else ()
    return Environment(
        str(record.get("command") or "not recorded"),
        Table("Environment of the run", ("item", "value"), tuple(cells(*pair) for pair in pairs)),
        json.dumps(config, indent=2, default=str, ensure_ascii=False) if config else "",
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item if isinstance(item, str) else json.dumps(item, default=str)
