"""Is everything that a run set out to measure in its table, once, whole and its own?

The plan stands in run.json: before the first case its seed, ranks and code; at the end, which tensors were measured on
which ranks, and in which columns. A digest of the plan tells an accident or an oversight, no forgery: whoever edits a
plan on purpose can make a digest too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from accuracy.core import fields
from accuracy.core.errors import printable
from accuracy.core.number import count
from accuracy.core.probes import PROBES
from accuracy.results import table

if TYPE_CHECKING:
    import pandas as pd

Plan = dict[str, Any]
SETTING = fields.names_but(fields.SEED, fields.DEVICE, fields.STACK)  # of a case, without its seed
ROW = ["case_id", "tensor", "rank"]
NO_RANK = -2  # where the column is empty
NO_PLAN = "run.json has no plan: an earlier version measured it; measure again"
NO_DIGEST = "the plan in run.json does not fit its digest: one of them was changed"
NO_SENSE = "the plan in run.json cannot be read; measure again"


class Promise(NamedTuple):
    """What is known of a planned case before it is measured."""

    seed: int
    ranks: int
    code: str


class Fault(NamedTuple):
    """Where something is absent, twice, mixed or strange, and what."""

    name: str
    text: str


def begun(cases: Mapping[str, Promise], stacks: list[str], device: str) -> Plan:
    """The plan of a run that begins. stacks: ids of cases inside stacks, which no gate judges; device: its model."""
    return _signed({"cases": {case: [*each, None] for case, each in cases.items()}, "stacks": stacks, "device": device})


def closed(plan: Plan, results: pd.DataFrame) -> Plan:
    """The plan with what each case ended in. results: the folder's, derived columns too."""
    ends: dict[str, int] = {}
    cases = dict(plan["cases"])
    rows = results[results["case_id"].isin(list(cases)) & ~table.in_stacks(results)]
    for case, columns in _columns(rows).items():
        cases[case] = [*cases[case][:3], ends.setdefault(json.dumps(columns), len(ends))]
    return _signed({**plan, "cases": cases, "ends": [json.loads(each) for each in ends]})


def faults(about: Mapping[str, Any], results: pd.DataFrame) -> tuple[Fault, ...]:
    """What is wrong; planned cases of which the table has nothing are left to the gate. results: all rows of the
    folder, derived columns too."""
    plan = about.get("plan")
    if plan is None:
        return (Fault("the run", NO_PLAN),)
    try:
        if _signed(plan)["digest"] != plan["digest"]:
            return (Fault("the run", NO_DIGEST),)
        rows = results[~results["case_id"].isin(plan["stacks"])].reset_index(drop=True)
        return tuple(_faults(plan, about, rows.assign(rank=rows["rank"].fillna(NO_RANK).astype("int64"))))
    except (LookupError, TypeError, ValueError, AttributeError):
        return (Fault("the run", NO_SENSE),)


def _signed(plan: Plan) -> Plan:
    """With the SHA-256 of its canonical JSON."""
    content = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return {**content, "digest": hashlib.sha256(text.encode()).hexdigest()}


def _columns(rows: pd.DataFrame) -> dict[str, list[list[Any]]]:
    """By case: tensor ("" where a case has no numbers), status, and the columns that none of its rows lacks."""
    filled = rows.notna()
    whole = filled.groupby([rows["case_id"], rows["tensor"].fillna("")], sort=True).all()
    status = rows.groupby(["case_id", rows["tensor"].fillna("")], sort=True)["status"].first()
    patterns, named = whole.to_numpy(), list(whole.columns)
    texts: dict[bytes, list[str]] = {}
    found: dict[str, list[list[Any]]] = {}
    for (case, tensor), pattern, ended in zip(whole.index, patterns, status, strict=True):
        names = texts.setdefault(
            pattern.tobytes(), [name for name, kept in zip(named, pattern, strict=True) if kept and name != "tensor"]
        )
        found.setdefault(case, []).append([tensor, ended, names])
    return found


def _faults(plan: Plan, about: Mapping[str, Any], rows: pd.DataFrame) -> Iterator[Fault]:
    names = {row["case_id"]: _name(row) for row in rows.drop_duplicates("case_id").to_dict("records")}
    cases, listed = plan["cases"], set(about["cases"])
    yield from _each(sorted(set(cases) | set(plan["stacks"])), listed, names, "planned, and run.json's cases lack it")
    yield from _each(sorted(listed), {*cases, *plan["stacks"]}, names, "among run.json's cases, and not planned")
    yield from _each(list(names), listed, names, "measured, and not planned; measure into another folder")
    if plan["device"] != about["fingerprint"].get("device"):
        yield Fault("the run", f"the plan was made on {plan['device']}, the fingerprint is of another device")
    rows = rows[rows["case_id"].isin(list(cases))]
    yield from _first(rows[table.in_stacks(rows)], names, "has rows of a stack")
    if not about.get("ended"):  # what it ended with is not known, and the gate says so
        return
    of_rows = [*_of_rows(plan, rows, names), *_of_columns(plan, rows, names)]
    yield from of_rows or _of_seeds(rows, names)


def _of_rows(plan: Plan, rows: pd.DataFrame, names: Mapping[str, str]) -> Iterator[Fault]:
    """Every planned (case, tensor, rank) once, as it ended, by the planned code on the planned device."""
    planned = {
        case: dict(zip(("seed", "world_size", "code"), each, strict=False)) for case, each in plan["cases"].items()
    }
    for column in ("seed", "world_size", "code"):
        other = rows[rows[column] != rows["case_id"].map({case: each[column] for case, each in planned.items()})]
        yield from _first(other, names, f"has rows of another {column} than was planned")
    yield from _first(
        rows[rows["device"] != plan["device"]], names, f"has rows of a device that is not {plan['device']}"
    )
    yield from _first(rows[rows.duplicated(ROW)], names, "has rows twice")
    found = rows.assign(tensor=rows["tensor"].fillna("")).drop_duplicates(ROW)
    both = _expected(plan, set(names)).merge(found[[*ROW, "status"]], how="outer", on=ROW, indicator="side")
    yield from _first(both[both["side"] == "left_only"], names, "was measured, and its rows are absent")
    yield from _first(both[both["side"] == "right_only"], names, "has rows that the run did not end with")
    changed = both[(both["side"] == "both") & (both["status"] != both["ended"])]
    yield from _first(changed, names, "has another status than the run ended with")


def _expected(plan: Plan, present: set[str]) -> pd.DataFrame:
    """(case, tensor, rank) and how it ended, of cases that have rows: every rank and all, or one row of no numbers."""
    import pandas as pd

    kept: list[tuple[str, str, int, str]] = []
    for case, (_, ranks, _, end) in plan["cases"].items():
        for tensor, status, names in plan["ends"][end] if end is not None and case in present else ():
            measured = range(table.ALL_RANKS, ranks if "error_rel" in names else 0)
            kept += [(case, tensor, rank, status) for rank in measured]
    return pd.DataFrame(kept, columns=[*ROW, "ended"]).astype({"rank": "int64"})


def _of_columns(plan: Plan, rows: pd.DataFrame, names: Mapping[str, str]) -> Iterator[Fault]:
    """Every number and text that the run ended with."""
    ends = rows["case_id"].map({case: each[3] for case, each in plan["cases"].items()})
    tensors = rows["tensor"].fillna("")
    for place, end in enumerate(plan["ends"]):
        for tensor, _, columns in end:
            mine = rows[(ends == place) & (tensors == tensor)]
            empty = mine[columns].isna()
            for column in empty.columns[empty.any()]:
                yield from _first(mine[empty[column]], names, f"{column} is empty")


def _of_seeds(rows: pd.DataFrame, names: Mapping[str, str]) -> Iterator[Fault]:
    """One case a seed, numbers of its own, and the same tensors on all seeds of a setting."""
    setting = rows.groupby(list(SETTING), sort=False, dropna=False).ngroup()
    cases = rows.assign(setting=setting).drop_duplicates("case_id")
    yield from _first(cases[cases.duplicated(["setting", "seed"])], names, "is measured by two cases")
    whole = rows[(rows["rank"] == table.ALL_RANKS) & rows["error_rel"].notna()].assign(setting=setting)
    seeds, all_seeds = (whole.groupby(by)["seed"].transform("nunique") for by in (["setting", "tensor"], "setting"))
    yield from _first(whole[seeds < all_seeds], names, "was measured on some seeds of its setting and not on others")
    shared = whole["error_rel"].isin([0.0, 1.0, np.inf])  # nothing wrong; a result of zeros; nothing finite
    usual = whole[~shared & ~whole["inputs"].isin(list(PROBES))]
    copied = usual[usual.duplicated(["setting", "tensor", "error_rel"])]
    yield from _first(copied, names, "has the numbers of another seed, to the last bit")


def _first(rows: pd.DataFrame, names: Mapping[str, str], text: str) -> Iterator[Fault]:
    """One fault a tensor: its first case, and how many others have it."""
    import pandas as pd

    tensors = rows["tensor"].fillna("") if "tensor" in rows else pd.Series("", rows.index)
    for tensor, some in rows["case_id"].groupby(tensors, sort=False):
        others = some.nunique() - 1
        more = f" (and {count(others, 'further case')})" if others else ""
        yield Fault(f"{names.get(some.iloc[0], some.iloc[0])} {printable(str(tensor))}".strip(), f"{text}{more}")


def _each(given: list[str], allowed: set[str], names: Mapping[str, str], text: str) -> Iterator[Fault]:
    import pandas as pd

    strange = [case for case in given if case not in allowed]
    yield from _first(pd.DataFrame({"case_id": strange}, dtype="object"), names, text)


def _name(row: Mapping[Any, Any]) -> str:
    return printable(f"{row['variant']} {row['dtype']} W={row['world_size']} seed {row['seed']}")[:300]
