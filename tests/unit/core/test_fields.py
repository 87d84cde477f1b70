"""Two cases that differ in one field stay two wherever cases are told apart, whichever field it is."""

from collections.abc import Callable
from dataclasses import fields as attributes
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from accuracy.core import fields
from accuracy.core.case import Case, Problem
from accuracy.report import series
from accuracy.report.about import command
from accuracy.results import cell, table
from accuracy.results.run_table import RunTable
from accuracy.verdict import evidence
from experiments import claim
from tests.measuring import TINY, cases
from tests.unit.verdict.synthetic import row

pytestmark = pytest.mark.xdist_group("fields")  # each field's cases are planned once
BASE = (*TINY, "variant=ring", "world_size=2", "kernel=eager", "inputs=tied", "device=cpu")
CHUNKS = ("variant=bpt_ring", "variant.bpt_ring.query_chunk=16")
CROSS = ("variant=split_kv", "world_size=1")
TWO = {  # words with which a run plans two cases that differ in that field alone
    "variant": ("variant=[ring,ulysses]",),
    "options": (*CHUNKS, "variant.bpt_ring.key_chunk=[16,24]"),
    "precision": ("precision.merge=[sigmoid,logsumexp]",),
    "kernel_options": ("kernel.eager.probability_dtype=[input,accumulate]",),
    "inputs_options": ("inputs=gaussian", "inputs.gaussian.std=[1.0,4.0]"),
    "against": ("path_b=[ulysses@2,ulysses/partial:accumulate@2]",),
    "dtype": ("dtype=[bfloat16,float32]",),
    "world": ("world=processes", "+also.b={world:{simulated:{}}}"),
    "world_size": ("world_size=[2,3]",),
    "seed": ("seed=[0,1]",),
    "mask": ("problem.mask=[causal,full]",),
    "window": ("problem.window=[null,8]",),
    "documents": ("problem.documents=[40+56,56+40]",),
    "softcap": ("problem.softcap=[null,3]",),
    "sinks": ("problem.sinks=[null,1]",),
    "head_dim_v": ("problem.head_dim_v=[null,6]",),
    "padding": ("problem.padding=[null,end]",),
    "batch": ("problem.batch=[1,2]",),
    "seqlen": (*CROSS, "problem.seqlen_q=48", "problem.seqlen=[96,80]"),
    "seqlen_q": (*CROSS, "problem.seqlen_q=[48,24]"),
    "heads": ("problem.heads=[4,8]",),
    "heads_kv": ("problem.heads_kv=[2,4]",),
    "head_dim": ("problem.softmax_scale=0.3", "problem.head_dim=[8,16]"),
    "softmax_scale": ("problem.softmax_scale=[null,0.3]",),
    "observers": ("+also.b={reruns:{repeat:1}}",),
}
BY_HAND: dict[str, Callable[[Case], Case]] = {  # what a command line chooses only with something else
    "kernel": lambda case: replace(case, kernel=replace(case.kernel, name="own")),
    "inputs": lambda case: replace(case, inputs=replace(case.inputs, name="own")),
    "sums": lambda case: replace(case, sums="ring"),
    "attn_mask": lambda case: replace(case, problem=replace(case.problem, attn_mask="given:1")),
    "sharding": lambda case: replace(case, variant=replace(case.variant, sharding="striped")),
    "device": lambda case: replace(case, device="cuda"),
    "parts": lambda case: replace(case, kernel=replace(case.kernel, source="my.eager")),
    "policies": lambda case: replace(case, forward_precision=replace(case.forward_precision, merge="double")),
}
IN_TABLES = [each.name for each in fields.FIELDS if each.role != fields.CONTENT]
"""Beside the digest; what else a case records is of the same numbers."""


@cache
def planned(*words: str) -> tuple[Case, ...]:
    return tuple(cases(*BASE, *words))


def two(name: str) -> tuple[Case, ...]:
    cases = planned(*TWO.get(name, ()))
    return (*cases, BY_HAND[name](cases[0])) if name in BY_HAND else cases


@cache  # to be read only
def rows_of(cases: tuple[Case, ...]) -> pd.DataFrame:
    """Rows as a run writes them, of out at each case's world size and at twice it; another error for each case."""
    rows = []
    for place, case in enumerate(cases):
        for size in (case.world_size, 4 * case.world_size):
            made = row("out", case.dtype, size, table.ALL_RANKS, case.seed)
            own = {**case.identity(), "world_size": size, "case_id": f"{case.id}-{size}", "code": "c0de"}
            error = made["error_rel"] * (1 + place)
            rows.append({**made, **own, "error_rel": error, "worst_token": 1, "condition_rounding": 2.0})
    return pa.Table.from_pylist(rows, table.RESULTS_SCHEMA).to_pandas()


def in_the_table(name: str) -> None:
    rows = rows_of(two(name))
    assert len(rows.drop_duplicates(list(fields.names()))) == 4
    first, second = (case.identity() for case in two(name))
    column = next(each.within or each.name for each in fields.FIELDS if each.name == name)
    assert {key for key in first if first[key] != second[key]} == {"case_id", column}


def in_the_grid(name: str) -> None:
    if name in TWO:
        first, second = planned(*TWO[name])
        axis = next(each for each in fields.AXES if each.name == name)
        assert axis.text(first) != axis.text(second)


def in_the_gate(name: str) -> None:
    cells = cell.measured(RunTable(Path(), {}, rows_of(two(name))))
    if name != "device":  # runs of two devices are not compared: a hard difference of their fingerprints
        assert sum(len(each.y) for each in cells.values()) == 4
        assert len({cell.named(key, cell.varying(list(cells))) for key in cells}) == len(cells)


def in_the_series(name: str) -> None:
    rows = series.with_labels(rows_of(two(name)))
    assert not rows.duplicated(["facet", "series", "world_size", "seed"]).any()


def in_a_claim(name: str) -> None:
    rows = rows_of(two(name))
    theirs = rows.assign(variant="theirs_" + rows["variant"])
    twins = {f"theirs_{variant}": variant for variant in rows["variant"]}
    if name in fields.names(fields.VARIANT) and name != "variant":  # a twin is another variant: which of the two is it?
        with pytest.raises(pd.errors.MergeError):
            claim.beside(pd.concat([rows, theirs]), twins)
    else:
        assert claim.beside(pd.concat([rows, theirs]), twins)["ratio"].tolist() == [1.0] * 4


def in_a_verdict(name: str) -> None:
    """A verdict is of all inputs and seeds."""
    rows = rows_of(two(name))
    found = [each for each in evidence.gather(rows) if each.tensor == "out"]
    assert sum(len(each.all_ranks) for each in found) == 4
    assert len(found) == (2 if name in (*fields.names(fields.INPUTS), "seed") else 4)


def in_the_command(name: str) -> None:
    """A variant's name decides its sharding, and a machine has a device."""
    if name not in ("sharding", "device"):
        assert len({command(case.identity()) for case in two(name)}) == 2
    for case in planned(*TWO[name])[-1:] if name in TWO else ():
        _, *words = command(case.identity()).split(" ")
        assert [again.id for again in planned(*words)] == [case.id]


def in_the_digest(name: str) -> None:
    assert len({replace(case).id for case in two(name)}) == 2


PLACES = (
    in_the_table, in_the_grid, in_the_gate, in_the_series, in_a_claim,
    in_a_verdict, in_the_command, in_the_digest,
)  # fmt: skip


@pytest.mark.parametrize("name", [each.name for each in fields.FIELDS])
def test_two_cases_that_differ_in_one_field_stay_two(name: str) -> None:
    """What else a case records, of the same numbers, is in the digest alone."""
    for place in PLACES if name in IN_TABLES else (in_the_digest,):
        place(name)


def without(name: str) -> Any:
    return lambda given: type(given)(each for each in given if getattr(each, "name", each) != name)


LOST = (  # a list that is derived from the fields, and a field that it loses
    (in_the_table, fields, "COLUMNS", "softcap"), (in_the_grid, fields, "AXES", "softcap"),
    (in_the_gate, cell, "KEYS", "softcap"),
    (in_the_series, series, "_FACET_DETAILS", "softcap"),
    (in_the_series, series, "_SERIES_DETAILS", "kernel_options"),
    (in_the_series, series, "_VARIANT_DETAILS", "options"),
    (in_a_claim, fields, "COLUMNS", "softcap"), (in_a_verdict, evidence, "SUBJECT", "softcap"),
    (in_the_command, fields, "COLUMNS", "softcap"), (in_the_digest, fields, "FIELDS", "softcap"),
)  # fmt: skip


def test_a_list_that_loses_a_field_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, module, derived, name in LOST:
        rows_of(two(name))  # as long as the list has the field
        with monkeypatch.context() as patch:
            patch.setattr(module, derived, without(name)(getattr(module, derived)))
            with pytest.raises((AssertionError, KeyError, StopIteration, ValueError)):
                place(name)


def test_every_part_of_a_problem_is_a_field() -> None:
    assert {each.name for each in attributes(Problem)} == {
        each.name for each in fields.FIELDS if each.role == fields.PROBLEM
    }
