"""Is everything that a run set out to measure in its table, once, whole and its own?

The plan stands in run.json: before the first case its seed, ranks and code; at the end, which tensors were measured on
which ranks, in which columns, and a digest of each case's rows. Digests tell an accident or an oversight, no forgery:
whoever edits a plan or a row on purpose can make a digest too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from accuracy.core import fields
from accuracy.core.dtype import PROBES
from accuracy.core.errors import printable
from accuracy.core.number import count
from accuracy.results import table
from accuracy.results.storage import UNREAD

if TYPE_CHECKING:
    import pandas as pd

Plan = dict[str, Any]
Wrong: TypeAlias = "pd.DataFrame | list[str] | None"
SETTING = fields.names_but(fields.SEED, fields.DEVICE)  # of a case, without its seed
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


def new_plan(cases: Mapping[str, Promise], device: str) -> Plan:
    """The plan of a run that begins. device: its model."""
    return _signed({"cases": {case: [*each, None] for case, each in cases.items()}, "device": device})


def closed_plan(plan: Plan, results: pd.DataFrame) -> Plan:
    """The plan with what each case ended in. results: the folder's, derived columns too."""
    ends: dict[str, int] = {}
    cases = dict(plan["cases"])
    rows = results[results["case_id"].isin(list(cases))]
    for case, columns in _columns(rows).items():
        cases[case] = [*cases[case][:3], ends.setdefault(json.dumps(columns), len(ends))]
    return _signed({**plan, "cases": cases, "ends": [json.loads(each) for each in ends], "rows": _digests(rows)})


def faults(about: Mapping[str, Any], results: pd.DataFrame, is_lean: bool = False) -> tuple[Fault, ...]:
    """What is wrong; planned cases of which the table has nothing are left to the gate. results: all rows of the
    folder, derived columns too; is_lean: whether numbers in them are rounded or left out, as in a published table."""
    plan = about.get("plan")
    if plan is None:
        return (Fault("the run", NO_PLAN),)
    try:
        if _signed(plan)["digest"] != plan["digest"]:
            return (Fault("the run", NO_DIGEST),)
        rank, tensor = results["rank"].fillna(NO_RANK).astype("int64"), results["tensor"].fillna("")
        rows = results.assign(rank=rank, tensor=tensor)
        first = rows.drop_duplicates("case_id").to_dict("records")
        names = {row["case_id"]: _name(row) for row in first}
        plan, unread = ({**plan, "rows": {}}, UNREAD) if is_lean else (plan, ())
        wrong = _wrong(plan, about, rows, unread)
        return tuple(fault for found, text in wrong for fault in _faults(found, text, names))
    except (LookupError, TypeError, ValueError, AttributeError):
        return (Fault("the run", NO_SENSE),)


def _name(row: Mapping[Any, Any]) -> str:
    return printable(f"{row['variant']} {row['dtype']} W={row['world_size']} seed {row['seed']}")[:300]


def _faults(found: Wrong, text: str, names: Mapping[str, str]) -> Iterator[Fault]:
    """One fault a tensor: its first case, and how many others have it."""
    if found is None:
        yield Fault("the run", text)
        return
    by_tensor = (
        [("", found)] if isinstance(found, list) else found["case_id"].groupby(found["tensor"].fillna(""), sort=False)
    )
    for tensor, some in by_tensor:
        cases = list(dict.fromkeys(some))
        more = f" (and {count(len(cases) - 1, 'further case')})" if len(cases) > 1 else ""
        if cases:
            yield Fault(f"{names.get(cases[0], cases[0])} {printable(str(tensor))}".strip(), f"{text}{more}")


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
            columns[field.name] = rows[field.name].astype("object").where(rows[field.name].notna(), "")
        elif field.name in rows:
            columns[field.name] = rows[field.name].astype("float64").fillna(np.nan) + 0.0  # no -0
    hashes = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False)
    return {str(case): f"{int(total):016x}" for case, total in hashes.groupby(rows["case_id"]).sum().items()}


def _columns(rows: pd.DataFrame) -> dict[str, list[list[Any]]]:
    """By case: tensor ("" where a case has no numbers), status, and the columns that none of its rows lacks."""
    by = [rows["case_id"], rows["tensor"].fillna("")]
    full = rows.drop(columns="tensor").notna().groupby(by, sort=True).all()
    ended = rows.groupby(by, sort=True)["status"].first()
    names = cache(lambda pattern: [name for name, filled in zip(full.columns, pattern, strict=True) if filled])
    found: dict[str, list[list[Any]]] = {}
    for (case, tensor), pattern, status in zip(full.index, full.to_numpy(), ended, strict=True):
        found.setdefault(case, []).append([tensor, status, names(tuple(pattern))])
    return found


def _wrong(
    plan: Plan, about: Mapping[str, Any], rows: pd.DataFrame, unread: Collection[str]
) -> Iterator[tuple[Wrong, str]]:
    """Rows, or cases, or None for the whole run, and what is wrong with them. unread: see `_of_columns`."""
    cases, listed = plan["cases"], set(about["cases"])
    yield sorted({*cases} - listed), "planned, and run.json's cases lack it"
    yield sorted(listed - {*cases}), "among run.json's cases, and not planned"
    yield (
        list(rows.loc[~rows["case_id"].isin(listed), "case_id"]),
        "measured, and not planned; measure into another folder",
    )
    if plan["device"] != about["fingerprint"].get("device"):
        yield None, f"the plan was made on {plan['device']}, the fingerprint is of another device"
    rows = rows[rows["case_id"].isin(list(cases))]
    if about.get("ended"):  # else what it ended with is not known, and the gate says so
        found = [pair for pair in (*_of_rows(plan, rows), *_of_columns(plan, rows, unread)) if len(pair[0])]
        found = found or [pair for pair in _of_seeds(rows) if len(pair[0])]
        yield from found or _of_contents(plan, rows)


def _of_rows(plan: Plan, rows: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, str]]:
    """Every planned (case, tensor, rank) once, as it ended, by the planned code on the planned device."""
    for index, column in enumerate(("seed", "world_size", "code")):
        planned = rows["case_id"].map({case: each[index] for case, each in plan["cases"].items()})
        yield rows[rows[column] != planned], f"has rows of another {column} than was planned"
    yield rows[rows["device"] != plan["device"]], f"has rows of a device that is not {plan['device']}"
    yield rows[rows.duplicated(ROW)], "has rows twice"
    found = rows.drop_duplicates(ROW)[[*ROW, "status"]]
    both = _expected(plan, {*rows["case_id"]}).merge(found, how="outer", on=ROW, indicator="side")
    yield both[both["side"] == "left_only"], "was measured, and its rows are absent"
    yield both[both["side"] == "right_only"], "has rows that the run did not end with"
    changed = both[(both["side"] == "both") & (both["status"] != both["ended"])]
    yield changed, "has another status than the run ended with"


def _expected(plan: Plan, present: set[str]) -> pd.DataFrame:
    """(case, tensor, rank) and how it ended, of cases that have rows: every rank and all, or one row of no numbers."""
    import pandas as pd

    expected: list[tuple[str, str, int, str]] = []
    for case, (_, ranks, _, end) in plan["cases"].items():
        for tensor, status, names in plan["ends"][end] if end is not None and case in present else ():
            measured = range(table.ALL_RANKS, ranks if "error_rel" in names else 0)
            expected += [(case, tensor, rank, status) for rank in measured]
    return pd.DataFrame(expected, columns=[*ROW, "ended"]).astype({"rank": "int64"})


def _of_columns(plan: Plan, rows: pd.DataFrame, unread: Collection[str]) -> Iterator[tuple[pd.DataFrame, str]]:
    """Every number and text that the run ended with. unread: columns that single ranks may lack."""
    ends = rows["case_id"].map({case: each[3] for case, each in plan["cases"].items()})
    for index, end in enumerate(plan["ends"]):
        for tensor, _, columns in end:
            own = rows[(ends == index) & (rows["tensor"] == tensor)]
            empty = own[columns].isna()
            empty.loc[own["rank"] >= 0, [name for name in columns if name in unread]] = False
            yield from ((own[empty[column]], f"{column} is empty") for column in empty.columns[empty.any()])


def _of_seeds(rows: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, str]]:
    """One case a seed, numbers of its own, and the same tensors on all seeds of a setting."""
    rows = rows.assign(setting=rows.groupby(list(SETTING), sort=False, dropna=False).ngroup())
    cases = rows.drop_duplicates("case_id")
    yield cases[cases.duplicated(["setting", "seed"])], "is measured by two cases"
    of_all = rows[(rows["rank"] == table.ALL_RANKS) & rows["error_rel"].notna()]
    seeds, all_seeds = (of_all.groupby(by)["seed"].transform("nunique") for by in (["setting", "tensor"], "setting"))
    yield of_all[seeds < all_seeds], "was measured on some seeds of its setting and not on others"
    shared = of_all["error_rel"].isin([0.0, 1.0, np.inf])  # nothing wrong; a result of zeros; nothing finite
    own = of_all[~shared & ~of_all["inputs"].isin(list(PROBES))]
    copied = own[own.duplicated(["setting", "tensor", "error_rel"])]
    yield copied, "has the numbers of another seed, to the last bit"


def _of_contents(plan: Plan, rows: pd.DataFrame) -> Iterator[tuple[list[str], str]]:
    """The same words and numbers as when the run ended; earlier versions have no digests of them."""
    planned = plan.get("rows", {})
    changed = [case for case, digest in _digests(rows).items() if planned.get(case, digest) != digest]
    yield changed, "has rows that are not those the run ended with: somebody changed them; measure it again"
