"""Is everything that a run set out to measure in its table, once, whole and its own?

The plan stands in run.json: before the first case its seed, ranks and code; at the end, a digest of each case's rows.
Digests tell an accident or an oversight, no forgery: whoever edits a plan or a row on purpose can make a digest too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from accuracy.core import fields
from accuracy.core.dtype import PROBES
from accuracy.core.errors import printable
from accuracy.core.number import count
from accuracy.results import table

if TYPE_CHECKING:
    import pandas as pd

Plan = dict[str, Any]
SETTING = fields.names_but(fields.SEED, fields.DEVICE)  # of a case, without its seed
NO_PLAN = "run.json has no plan: an earlier version measured it; measure again"
NO_DIGEST = "the plan in run.json does not fit its digest: one of them was changed"
NO_SENSE = "the plan in run.json cannot be read; measure again"


class Promise(NamedTuple):
    """What is known of a planned case before it is measured."""

    seed: int
    world_size: int
    code: str


class Fault(NamedTuple):
    """Where something is absent, twice, mixed or strange, and what."""

    name: str
    text: str


def new_plan(cases: Mapping[str, Promise], device: str) -> Plan:
    """The plan of a run that begins. device: its model."""
    return _signed({"cases": {case: [*each] for case, each in cases.items()}, "device": device})


def closed_plan(plan: Plan, results: pd.DataFrame) -> Plan:
    """The plan with what each case ended in. results: the folder's, derived columns too."""
    return _signed({**plan, "rows": _digests(results[results["case_id"].isin(list(plan["cases"]))])})


def faults(about: Mapping[str, Any], results: pd.DataFrame) -> tuple[Fault, ...]:
    """What is wrong; planned cases of which the table has nothing are left to the gate. results: all rows of the
    folder, derived columns too."""
    plan = about.get("plan")
    if plan is None:
        return (Fault("the run", NO_PLAN),)
    try:
        if _signed(plan)["digest"] != plan["digest"]:
            return (Fault("the run", NO_DIGEST),)
        names = {row["case_id"]: _name(row) for row in results.drop_duplicates("case_id").to_dict("records")}
        return tuple(Fault(_where(cases, names), text) for cases, text in _wrong(plan, about, results) if cases)
    except (LookupError, TypeError, ValueError, AttributeError):
        return (Fault("the run", NO_SENSE),)


def _name(row: Mapping[Any, Any]) -> str:
    return printable(f"{row['variant']} {row['dtype']} W={row['world_size']} seed {row['seed']}")[:300]


def _where(cases: list[str], names: Mapping[str, str]) -> str:
    """The first case, and how many others have it."""
    first, *others = dict.fromkeys(cases)
    return names.get(first, first) + (f" (and {count(len(others), 'further case')})" if others else "")


def _signed(plan: Plan) -> Plan:
    """With the SHA-256 of its canonical JSON."""
    content = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return {**content, "digest": hashlib.sha256(text.encode()).hexdigest()}


def _digests(rows: pd.DataFrame) -> dict[str, str]:
    """By case, 16 digits of all that its rows say, in any order: a column's texts, or its numbers as float64."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for field in table.RESULTS_SCHEMA:
        if field.name in rows and field.type == "string":
            columns[field.name] = rows[field.name].to_numpy("object", na_value="")
        elif field.name in rows:
            columns[field.name] = rows[field.name].to_numpy("float64", na_value=np.nan) + 0.0  # no -0
    hashes = pd.util.hash_pandas_object(pd.DataFrame(columns, rows.index), index=False)
    return {str(case): f"{int(total):016x}" for case, total in hashes.groupby(rows["case_id"]).sum().items()}


def _wrong(plan: Plan, about: Mapping[str, Any], rows: pd.DataFrame) -> Iterator[tuple[list[str], str]]:
    """Ids of cases, and what is wrong with them."""
    cases, listed = plan["cases"], set(about["cases"])
    yield sorted({*cases} - listed), "planned, and run.json's cases lack it"
    yield sorted(listed - {*cases}), "among run.json's cases, and not planned"
    extra = rows.loc[~rows["case_id"].isin(listed), "case_id"]
    yield list(extra), "measured, and not planned; measure into another folder"
    if plan["device"] != about["fingerprint"].get("device"):
        yield ["the run"], f"the plan was made on {plan['device']}, the fingerprint is of another device"
    rows = rows[rows["case_id"].isin(list(cases))]
    if about.get("ended"):  # else what it ended with is not known, and the gate says so
        found = [pair for pair in (*_of_plan(plan, rows), *_of_seeds(rows)) if pair[0]]
        changed = [case for case, digest in _digests(rows).items() if plan["rows"].get(case) != digest]
        yield from found or [(changed, "has rows that are not those the run ended with; measure it again")]


def _of_plan(plan: Plan, rows: pd.DataFrame) -> Iterator[tuple[list[str], str]]:
    """By the planned code on the planned device."""
    for index, column in enumerate(Promise._fields):
        planned = rows["case_id"].map({case: each[index] for case, each in plan["cases"].items()})
        yield list(rows.loc[rows[column] != planned, "case_id"]), f"has rows of another {column} than was planned"
    yield (
        list(rows.loc[rows["device"] != plan["device"], "case_id"]),
        f"has rows of a device that is not {plan['device']}",
    )


def _of_seeds(rows: pd.DataFrame) -> Iterator[tuple[list[str], str]]:
    """One case a seed, numbers of its own, and the same tensors on all seeds of a setting."""
    rows = rows.assign(setting=rows.groupby(list(SETTING), sort=False, dropna=False).ngroup())
    cases = rows.drop_duplicates("case_id")
    yield list(cases.loc[cases.duplicated(["setting", "seed"]), "case_id"]), "is measured by two cases"
    of_all = rows[(rows["rank"] == table.ALL_RANKS) & rows["error_rel"].notna()]
    seeds, all_seeds = (of_all.groupby(by)["seed"].transform("nunique") for by in (["setting", "tensor"], "setting"))
    left_out = of_all.loc[seeds < all_seeds, "case_id"]
    yield list(left_out), "has a tensor that was measured on some seeds of its setting and not on others"
    shared = of_all["error_rel"].isin([0.0, 1.0, np.inf])  # nothing wrong; a result of zeros; nothing finite
    own = of_all[~shared & ~of_all["inputs"].isin(list(PROBES))]
    copied = own.loc[own.duplicated(["setting", "tensor", "error_rel"]), "case_id"]
    yield list(copied), "has the numbers of another seed, to the last bit"
