"""Each rule fires on a table bent for it, and on nothing else; healthy rounding of every kind is no bug. A user's
function may round more than this package's kernels do, which is a fact; what is farther off is a bug."""

import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.core.dtype import FORMATS
from accuracy.core.paths import PACKAGE
from accuracy.explain.hypothesis import search
from accuracy.kernel import in_torch
from accuracy.results import table as tables
from accuracy.results.table import ALL_RANKS, OK, RESULTS_SCHEMA
from accuracy.verdict.floor import LEVEL
from accuracy.verdict.label import LOGIC, NOT_MEASURED, ROUNDING
from accuracy.verdict.rule.excess import BY_AUTOGRAD
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.measuring import measure
from tests.unit.verdict.synthetic import DTYPES, Bent, bend, facts_of, healthy, label, mislabelled, row, rows

BIASED_OUT = {"error_bias": lambda old: old * 0 - 0.3 * 1.32 * 0.41 * 2.0**-8}
CAST = {"error_rel": 1.6e-3, "error_rms": 1.6e-3, "floor_mean": 0.8 * 0.41 * 2.0**-24}
BENT: list[tuple[str, dict[str, Any], dict[str, Any], dict[tuple[str, str], str]]] = [
    ("non-finite values", {"tensor": "out", "dtype": "bfloat16", "rank": -1}, {"nonfinite": 3},
     {("out", "bfloat16"): "invalid", ("out", "float32"): "rounding"}),
    ("unwritten memory", {"tensor": "dk", "dtype": "float32", "rank": -1}, {"poisoned": 1.0},
     {("dk", "bfloat16"): "invalid", ("dk", "float32"): "invalid", ("dv", "float32"): "rounding"}),
    ("a leak from the future", {"tensor": "out", "dtype": "float32", "rank": -1}, {"future_differs": 1.0},
     {("out", "float32"): "logic"}),
    ("an error that does not fall", {"tensor": "dq"}, {"error_rel": 0.3},
     {("dq", "bfloat16"): "logic", ("dq", "float64"): "logic"}),
    ("a fault in wide dtypes only", {"tensor": "dq", "dtype": ("float32", "float64")}, {"error_rel": 0.3},
     {("dq", "bfloat16"): "rounding", ("dq", "float32"): "logic"}),
    ("a cast to bfloat16", {"tensor": "dq", "dtype": ("float16", "float32", "float64")},
     {"error_rel": 1.6e-3, "significand_bits": 8.0},
     {("dq", "bfloat16"): "rounding", ("dq", "float16"): "precision_floor", ("dq", "float64"): "precision_floor"}),
    ("a partial in bfloat16", {"tensor": "out", "dtype": ("float16", "float32", "float64")}, {"error_rel": 1.2e-3},
     {("out", "float32"): "precision_floor", ("out", "float16"): "precision_floor"}),
    ("an lse in bfloat16", {"tensor": "lse"}, {"error_rel": 1.6e-3, "significand_bits": 8.0},
     {("lse", "bfloat16"): "precision_floor"}),
    ("twice single device's error", {"tensor": "dv", "dtype": "bfloat16"}, {"error_rel": 2.4 * 0.41 * 2.0**-8},
     {("dv", "bfloat16"): "excess_rounding", ("dv", "float16"): "rounding"}),
    ("one element far off", {"tensor": "dv", "dtype": "bfloat16", "rank": -1, "seed": 1}, {"error_max": 1.0},
     {("dv", "bfloat16"): "excess_rounding"}),
    ("one rank far off", {"tensor": "dv", "dtype": "bfloat16", "rank": 1}, {"error_rel": 5 * 0.41 * 2.0**-8},
     {("dv", "bfloat16"): "excess_rounding"}),
    ("a bias", {"tensor": "out", "dtype": "bfloat16", "rank": -1}, BIASED_OUT, {("out", "bfloat16"): "biased"}),
    ("differing repeats", {"tensor": "dq", "dtype": "float32", "rank": -1}, {"repeats_differ": 2.0},
     {("dq", "float32"): "nondeterministic", ("dq", "bfloat16"): "nondeterministic", ("dk", "float32"): "rounding"}),
    ("a bfloat16's rounding on one rank", {"tensor": "out", "dtype": ("float32", "float64"), "rank": (-1, 2)},
     {"error_rel": 1.6e-3}, {("out", "float32"): "logic"}),
    ("a cast of all elements", {"tensor": "out", "dtype": "float32"}, CAST | {"error_mean": 0.8 * 1.6e-3},
     {("out", "float32"): "precision_floor"}),
    ("a cast of a row in a hundred", {"tensor": "out", "dtype": "float32"}, CAST | {"error_mean": 0.08 * 1.6e-3},
     {("out", "float32"): "logic"}),
]  # fmt: skip


U, WIDE, FLOOR, EXCESS = 2.0**-8, ("float16", "float32"), "precision_floor", "excess_rounding"


def delta(times: float) -> pd.DataFrame:
    """As autocast to bfloat16 has it: two roundings of out are more than delta may have, whose bits tell nothing."""
    table = bend(healthy(), {"tensor": "out", "dtype": WIDE}, error_rel=1.9 * U, significand_bits=8.0)
    return bend(table, {"tensor": "delta", "dtype": WIDE}, error_rel=times * 1.9 * U)


def roundings(*dtypes: str) -> pd.DataFrame:
    """Twenty u, beyond the band of 16 bits; in every dtype it falls as u does: an ill-conditioned schedule."""
    table = healthy()
    for dtype in dtypes:
        table = bend(table, {"tensor": "dv", "dtype": dtype}, error_rel=20 * FORMATS[dtype].unit_roundoff)
    return table


def of_floors(tensor: str, dtype: str, size: int, floors: float, lse: float = 1.0, **more: Any) -> pd.DataFrame:
    """Of one seed whose error is so many floors."""
    error = floors * LEVEL * FORMATS[dtype].unit_roundoff
    found = rows(tensor, (dtype,), size, **{"error_rel": error, "error_rms": error, "error_max": 4 * error, **more})
    found.append(row("lse", dtype, size, -1, 0, reference_rms=lse))
    return pd.DataFrame(found).assign(kernel=more.get("kernel", "eager"))


def sink(ratio: float, size: int = 4, **known: float) -> pd.DataFrame:
    """Single device at 12 floors. A sum 30 times as large in its terms: joining explains 1.2 sqrt(1 + (30 / 12)^2) =
    3.2 times its error, and without the condition numbers nobody can say. Where nothing is joined it is 1.2 times."""
    single = {"single_device_rel": 12 * LEVEL * U, "inputs": "attention_sink"}
    return of_floors("dk", "bfloat16", size, ratio * 12, **single, **known)


def on_one_rank(options: str) -> pd.DataFrame:
    """1.32 times single device's error: what joining explains, and a lone kernel does not."""
    worse = bend(healthy((1,)), {"tensor": "out", "dtype": "bfloat16"}, error_rel=1.32 * 1.2 * 0.41 * U)
    return worse.assign(options=options)


def probe(inputs: str, tensor: str, **changes: float) -> pd.DataFrame:
    return pd.concat([healthy(), pd.DataFrame([row(tensor, "bfloat16", 4, -1, 0, inputs=inputs, **changes)])])


def repeating(**more: float) -> pd.DataFrame:
    """Three runs, of which two agree on rank 1 by chance: the one with other later tokens differs as any may."""
    dq = {"tensor": "dq", "dtype": "float32"}
    leak = bend(healthy(), dq | {"rank": (1, -1)}, future_differs=5.0, repeats_differ=0.0)
    return bend(leak, dq | {"rank": (2, -1)}, **more)


def of_16_bits() -> pd.DataFrame:
    """Of a kernel that takes 16 bits alone, a leak in bfloat16 alone: both were run again."""
    table = healthy(dtypes=("bfloat16", "float16")).assign(future_differs=0.0, repeats_differ=0.0)
    leak = bend(table, {"tensor": "out", "dtype": "bfloat16", "rank": -1}, future_differs=5.0)
    bare = table[table["dtype"] == "float16"].drop_duplicates("case_id")
    bare = bare.assign(dtype="float32", tensor=None, error_rel=math.nan, status="failed", reason="no")
    return pd.concat([leak, bare])


def failed(reason: str) -> pd.DataFrame:
    bare = {"tensor": None, "error_rel": None, "status": "failed", "reason": reason}
    return pd.DataFrame([row("out", "bfloat16", 4, -1, 0) | bare])


def overflowing(out: float) -> pd.DataFrame:
    """Peaked inputs overflow; out: its error on Gaussian ones."""
    peaked = healthy(dtypes=("float32",)).assign(inputs="peaked")
    peaked = bend(peaked, {"tensor": "out"}, nonfinite=3, error_rel=float("inf"))
    return pd.concat([bend(healthy(), {"tensor": "out", "dtype": "float32"}, error_rel=out), peaked])


def single(floors: float, u: float, **more: Any) -> dict[str, Any]:
    return {"single_device_rel": floors * LEVEL * u, **more}


FLOAT32, FIVE, TERMS = single(1, 2.0**-24), single(5, U), single(1, U, condition_rounding=2.0)
"""A window of one key: single device's dv is exact but for its own rounding, another order of the 16 products of a
score makes sqrt(18) |lse| = 8.5 roundings. Single device at 5 floors: dq and dk inherit the rounding of a joined out,
one rounding more is 1.02 times that, out's doubled is 1.41 times; dv does not. Kernels with autograd's backward round
terms, others sums: terms at 2 floors and single device at 1 are sqrt(1 + 2^2) = 2.2."""


OUT, DK, DQ, DV = ((tensor, "bfloat16") for tensor in ("out", "dk", "dq", "dv"))
DELTA = [("delta", dtype) for dtype in WIDE]
MORE: list[Bent] = [
    ("delta as far off as out", lambda: delta(1.0), dict.fromkeys([*DELTA, ("out", "float32")], FLOOR)),
    ("delta farther off", lambda: delta(4.1), dict.fromkeys(DELTA, LOGIC)),
    ("much rounding", lambda: roundings(*DTYPES), {DV: EXCESS}),
    ("much rounding in one dtype", lambda: roundings("bfloat16"), {DV: LOGIC}),
    *((f"partials that cancel, {known}, {ratio}, {size}",
       lambda c=(ratio, size), k=known: sink(*c, condition_sum=k[0], condition_rounding=k[1]), {DK: label})
      for known in ((30.0, 20.0), (5.0, 30.0))
      for ratio, size, label in ((2.9, 4, ROUNDING), (4.0, 4, EXCESS), (2.9, 1, EXCESS))),
    ("cancelling, unknown", lambda: sink(4.0), {DK: ROUNDING}), ("nothing joined", lambda: sink(2.9, 1), {DK: EXCESS}),
    *((f"one rank, {options}", lambda options=options: on_one_rank(options), {OUT: label}) for options, label in (
        ("", EXCESS), ("splits=8", ROUNDING), ("key_chunk=64,query_chunk=128", ROUNDING))),
    *((f"probe {inputs} {label}", lambda each=(inputs, tensor), how=how: probe(*each, **how),
       {(tensor, "bfloat16"): label})
      for inputs, tensor, changes in (("one_value", "out", {"error_rel": 0.2}),
                                      ("index_value", "out", {"error_rel": 0.2}),
                                      ("one_gradient", "dq", {"error_rms": 1.0}))
      for how, label in ((changes, LOGIC), ({}, ROUNDING))),
    ("a leak on a rank", repeating, {("dq", "float32"): LOGIC}),
    ("a rank that happens to repeat", lambda: repeating(repeats_differ=3.0), {("dq", "float32"): "nondeterministic"}),
    ("a leak in one dtype", of_16_bits, {OUT: LOGIC, ("out", "float16"): ROUNDING, ("out", "float32"): NOT_MEASURED}),
    ("out of memory", lambda: failed("OutOfMemoryError: no"), {OUT: NOT_MEASURED}),
    *((f"dq {what}", lambda what=what: failed(f"WrongResult: dq {what}"), {DQ: "invalid", OUT: NOT_MEASURED})
      for what in ("came as (1,) torch.float32, expected (2,)", "of other inputs is that of the call before")),
    ("writes", lambda: failed("rank 0: RuntimeError: the variant wrote to its inputs"), {OUT: "invalid"}),
    ("overflow beside a bug", lambda: overflowing(0.3), {("out", "float32"): LOGIC}),
    ("overflow alone", lambda: overflowing(1e-8), {("out", "float32"): "invalid"}),
    *((f"inherited {each} {more}", lambda each=each, more=more: of_floors(*each, **more), {each[:2]: label})
      for each, more, label in (
        (("dv", "float32", 1, 9.9, 2.0), FLOAT32, ROUNDING), (("dv", "float32", 1, 18.0, 2.0), FLOAT32, LOGIC),
        (("dv", "float32", 1, 9.9, 0.1), FLOAT32, LOGIC), (("dq", "bfloat16", 2, 7.0), FIVE, ROUNDING),
        (("dk", "bfloat16", 2, 7.0), FIVE, ROUNDING), (("dv", "bfloat16", 2, 7.0), FIVE, EXCESS),
        (("dq", "bfloat16", 2, 9.0), FIVE, EXCESS),
        (("dv", "bfloat16", 2, 2.1), TERMS | {"kernel": "torch_math"}, ROUNDING),
        (("dv", "bfloat16", 2, 2.9), TERMS | {"kernel": "torch_math"}, EXCESS),
        (("dv", "bfloat16", 2, 2.1), TERMS | {"kernel": "eager"}, EXCESS))),
]  # fmt: skip


def test_each_rule_says_what_it_is_for() -> None:
    """All tables are judged at once, each as a variant of its own."""
    bent = [(name, partial(bend, healthy(seeds=4), where, **changes), label) for name, where, changes, label in BENT]
    assert mislabelled([*bent, *MORE]) == {}


def test_a_healthy_table_is_rounding_and_two_masks_are_two_subjects(tmp_path: Path) -> None:
    """Also a table of an earlier version, which leaves columns out."""
    found = verdicts(healthy((1, 2, 4)))
    assert set(found["label"]) == {ROUNDING}
    assert len(verdicts(pd.concat([healthy(), healthy().assign(mask="full")]))) == 2 * len(verdicts(healthy()))
    old = healthy((1,), ("bfloat16",), 1).drop(columns=["significand_bits", "single_device_max", "repeats_differ"])
    old.to_parquet(tmp_path / "results.parquet")
    assert set(verdicts(tables.read_results(tmp_path))["label"]) == {ROUNDING}


def test_keys_that_a_probe_does_not_count_are_counted() -> None:
    table = probe("zero_query", "lse", error_max=1 / 101, error_bias=-1e-4)
    (off,) = verdicts(table).query("tensor == 'lse' and dtype == 'bfloat16'").to_dict("records")
    assert (off["label"], off["numbers"]["keys_seen"], round(off["numbers"]["keys_counted"])) == (LOGIC, 101, 100)
    assert label(probe("zero_query", "lse"), "lse", "bfloat16") == ROUNDING


def test_overflow_on_peaked_inputs_does_not_hide_a_bug_on_gaussian_ones() -> None:
    found = facts_of(overflowing(0.3))
    assert (found.label, found.inputs) == (LOGIC, ("gaussian",))


def test_kernels_with_autograd_s_backward_are_known() -> None:
    call = "return gradients_by_autograd("
    callers = {path.stem for path in (PACKAGE / "kernel").glob("*.py") if call in path.read_text()}
    of_torch = {name for name, part in in_torch.PARTS.items() if call in inspect.getsource(part.KERNEL)}
    assert callers - {"in_torch"} | of_torch == {*BY_AUTOGRAD}


@pytest.fixture(autouse=True)
def _without_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and have tests of their own."""
    monkeypatch.setattr(search, "rows", lambda *case: [])


@pytest.mark.parametrize(("dtype", "by"), [("float32", 5e-4), ("bfloat16", 8.0)])
def test_one_wrong_element_is_proven_wrong(dtype: str, by: float, tmp_path: Path) -> None:
    """5e-4 of one element in 6,144 is 2e-5 of the norm: below the 6e-5 that the ladder allows float32."""
    folder = planting.last(tmp_path, "odd", "forward", f"if rank.world.rank == 1: out[0, 5, 1, 2] += {by}")
    words = ("variant=odd", "world_size=2", "kernel=eager", f"dtype={dtype}")
    rows = measure(*words, "reruns.explain=true", folders=[folder])
    out = rows[rows["tensor"] == "out"].set_index("rank")
    assert out["beyond"].to_dict() == {ALL_RANKS: 1, 0: 0, 1: 1}
    assert out.loc[1, ["worst_token", "worst_head", "worst_dim"]].to_list() == [53, 1, 2]
    judged = verdicts(rows.reindex(columns=RESULTS_SCHEMA.names)).set_index("tensor")
    assert judged.loc["out", "label"] == LOGIC
    if dtype == "float32":
        assert (judged.loc["out", "rule"], judged.loc["out", "numbers"]["beyond"]) == ("beyond", 1)
        unasked = measure(*words, folders=[folder]).reindex(columns=RESULTS_SCHEMA.names)
        rule = verdicts(unasked).set_index("tensor").loc["out", "rule"]
        assert rule == "excess"  # a ratio of norms, from which the fault is inferred


def test_windows_documents_caps_and_formats_that_the_case_asks_for_have_bounds() -> None:
    for words in (
        "problem.window=7", "problem.documents=40+56", "problem.softcap=2.5", "problem.sinks=1",
        "problem.head_dim_v=12",
        "precision.partial=bfloat16", "precision.gradient_wire=float16 precision.lse=float16",
        "kernel.eager.probability_dtype=bfloat16", "kernel.eager.compute_dtype=bfloat16",
    ):  # fmt: skip
        how = ("variant=ring", "kernel=eager", "dtype=float32", "world_size=2", "problem.batch=1")
        rows = measure(*how, "reruns.explain=true", *words.split())
        assert (rows["status"] == OK).all()
        judged = rows[~rows["tensor"].isin(["delta", "dsink"])]
        assert set(judged["tensor"]) == {"out", "lse", "dq", "dk", "dv"}
        assert (judged["beyond"] == 0).all(), words
