"""On what was it measured? One line of facts: device, kernel, mask, tokens, heads, dtypes, seeds, what is held."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.core.number import count
from accuracy.report.folder import Run
from accuracy.results.claim import Claim
from accuracy.results.table import FAILED, OK, UNSUPPORTED

MOST_VALUES = 4


def facts_line(run: Run, claims: list[Claim]) -> str:
    """Short words, joined by a dot."""
    every = run.cases
    cases = every[every["status"] == OK] if (every["status"] == OK).any() else every
    parts = (
        _device(run, cases),
        _listed(cases["kernel"], "kernel"),
        _listed(cases["mask"], "mask"),
        _numbers(cases["seqlen"], "tokens"),
        _heads(cases),
        _listed(sorted(cases["dtype"].unique(), key=lambda name: DTYPES[name].precision), "dtype"),
        count(cases["seed"].nunique(), "seed"),
        _claims(claims),
        *(_number(every, status) for status in (FAILED, UNSUPPORTED)),
    )
    return " · ".join(filter(None, parts))


def _claims(claims: list[Claim]) -> str:
    found = [claim.holds for claim in claims]
    open_ = f" ({found.count(None)} cannot be judged here)" if None in found else ""
    return f"claims held: {found.count(True)} of {len(found) - found.count(None)}{open_}" if found else ""


def _number(cases: pd.DataFrame, status: str) -> str:
    number = int((cases["status"] == status).sum())
    return f"{count(number, 'case')} {status}" if number else ""


def _device(run: Run, cases: pd.DataFrame) -> str:
    provenance: Any = run.record.get("provenance")
    named = provenance.get("device_name") if isinstance(provenance, dict) else None
    return str(named or _listed(cases["device"].dropna(), "device"))


def _listed(values: Iterable[Any], word: str) -> str:
    names = list(dict.fromkeys(map(str, values)))
    return ", ".join(names) if len(names) <= MOST_VALUES else f"{len(names)} {word}s"


def _numbers(values: "pd.Series[int]", word: str) -> str:
    numbers = sorted(map(int, values.dropna().unique()))
    if len(numbers) > MOST_VALUES:
        return f"{numbers[0]:,} to {numbers[-1]:,} {word}"
    return f"{', '.join(f'{number:,}' for number in numbers)} {word}" if numbers else ""


def _heads(cases: pd.DataFrame) -> str:
    shapes = cases[["heads", "heads_kv", "head_dim"]].dropna().drop_duplicates().astype(int)
    said = [f"{heads} heads{f' ({kv} of keys)' if kv != heads else ''} of {dim}" for heads, kv, dim in shapes.values]
    return said[0] if len(said) == 1 else f"{len(said)} shapes of heads" if said else ""
