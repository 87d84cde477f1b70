"""A user's function may round more than this package's kernels do, which is a fact; what is farther off is a bug."""

import math
from typing import Any

import pandas as pd

from accuracy.verdict.floor import LEVEL
from accuracy.verdict.label import LOGIC, PRECISION_FLOOR, ROUNDING
from tests.unit.verdict.synthetic import DTYPES, Bent, bend, facts_of, healthy, mislabelled, row, rows

OWN, U = "fn=mine.py:attend", 2.0**-8
TF32 = {"dtype": ("float32", "float64"), "tensor": ("out", "dq", "dk", "dv", "delta")}


def in_tf32(where: dict[str, Any], **changes: float) -> pd.DataFrame:
    """A function that computes so whatever comes: values beyond the bound of float64 are none then."""
    table = healthy().assign(options=f"arithmetic=tf32,{OWN}")
    table = bend(table, TF32, error_rel=3e-4, error_rms=3e-4, significand_bits=24.0)
    return bend(bend(table, TF32 | {"dtype": "float64"}, beyond=7.0, error_max=1e-3), TF32 | where, **changes)


def of_scores(times: float, options: str = OWN, inputs: str = "peaked", known: float = 27) -> pd.DataFrame:
    """Scores in 16 bits on peaked inputs, of condition 27: once is 0.41 u times that, above the band; this package's
    kernels keep scores in float32, and Gaussian inputs excuse nothing. Without that number scores spread by 27."""
    more = {"condition_softmax": known, "inputs_options": f"std={math.sqrt(27)}", "options": options}
    return pd.DataFrame(rows("out", ("bfloat16",), inputs=inputs, error_rel=times * LEVEL * U * 27, **more))


def of_lse(inputs: str, units: float, outward: float) -> pd.DataFrame:
    """One way by at most a unit roundoff; a scaled q of tied inputs has few values, whose rounding has a mean."""
    error = units * U
    own = {"inputs": inputs, "error_rel": error, "error_rms": error, "error_outward": outward * error}
    return pd.DataFrame(rows("lse", ("bfloat16",), options=OWN, **own))


def biased(tensor: str, factor: float, options: str = OWN) -> pd.DataFrame:
    """Of 1.1 u away from zero, where the tensor's own factor is 1.4 u; of 1 u it is beyond what the factor makes."""
    changes = {"error_outward": 1.1 * 2.0**-24, "error_gain": factor * 2.0**-24, "error_gain_se": 2.0**-28}
    table = healthy(seeds=4).assign(options=options)
    return bend(table, {"tensor": tensor, "dtype": "float32", "rank": -1}, **changes)


def coarse(tensor: str, units: float, options: str = OWN) -> pd.DataFrame:
    """1.74 u of bfloat16 on all elements, as dk of a flash backward in 16 bits has, in a float32 case; 2.9 u is more
    than four times three roundings. out, and this package's variants, have no more than four roundings."""
    return bend(healthy().assign(options=options), {"tensor": tensor}, error_rel=units * U)


CASES: list[Bent] = [
    ("TF32", lambda: in_tf32({}), {(tensor, dtype): ROUNDING for tensor in TF32["tensor"] for dtype in DTYPES}),
    ("a factor beside TF32", lambda: in_tf32({}, error_gain=0.01, error_gain_se=1e-6), {("out", "float64"): LOGIC}),
    ("float64 alone in TF32", lambda: in_tf32({"dtype": "float32", "tensor": "out"}, error_rel=1e-7, error_rms=1e-7),
     {("out", "float64"): PRECISION_FLOOR}),
    *((f"scores {each}", lambda each=each: of_scores(*each), {("out", "bfloat16"): label}) for label, tables in (
        (ROUNDING, ((1.0,), (3.9,), (3.9, OWN, "peaked", math.nan))),
        (LOGIC, ((4.1,), (4.1, OWN, "peaked", math.nan), (3.9, ""), (3.9, OWN, "gaussian")))) for each in tables),
    *((f"lse {each}", lambda each=each: of_lse(*each), {("lse", "bfloat16"): finding}) for finding, tables in (
        ("scores", (("gaussian", 0.2, 0.1), ("tied", 0.2, 0.5))),
        ("floor", (("gaussian", 0.2, 0.5), ("tied", 1.1, 0.5))))
      for each in tables),
    *((f"a bias {each}", lambda each=each: biased(*each), {(each[0], "float32"): label}) for label, tables in (
        (ROUNDING, (("dk", 1.4), ("dq", 1.4))), ("biased", (("dk", 1.0), ("dk", 1.4, ""), ("dv", 1.4))))
      for each in tables),
    *((f"coarse {each}", lambda each=each: coarse(*each), {(each[0], "float32"): label}) for label, tables in (
        (PRECISION_FLOOR, (("dk", 0.2), ("dk", 1.74), ("out", 1.6, ""))),
        (LOGIC, (("dk", 2.9), ("dk", 1.74, ""), ("out", 1.74))))
      for each in tables),
]  # fmt: skip


def test_what_a_user_s_function_may_round_is_no_bug_and_more_is() -> None:
    assert mislabelled(CASES) == {}


def test_a_long_sum_in_16_bits_is_a_fact_of_a_user_s_function_and_more_is_a_bug() -> None:
    """out of 516 blocks that are added in bfloat16 is 6.5 u off, 16 roundings; 1.7 times that is no such sum, nor is it
    one of few keys, of dv, whose terms are 16 queries, or of a variant of this package; a factor stays one. dq and dk,
    whose differences of dP and delta are rounded alike for many keys, are held to the band alone."""
    error = 6.5 * 2.0**-8
    own = {"seqlen": 33024, "seqlen_q": 16, "options": "fn=mine.py:attend"}

    def judged(tensor: str, times: float = 1.0, dtypes: tuple[str, ...] = ("bfloat16",), **more: Any) -> str:
        table = healthy((1,), dtypes, 1).assign(**own | more)
        changes = {"error_rel": times * error, "error_rms": times * error, "error_max": 4 * times * error}
        return facts_of(bend(table, {"tensor": tensor, "dtype": "bfloat16"}, **changes)).label

    assert [judged(tensor) for tensor in ("out", "dq", "dk", "delta", "dv")] == [ROUNDING] * 4 + [LOGIC]
    assert [judged("dq", dtypes=("bfloat16", "float32")), judged("dq", 2.0)] == [ROUNDING] * 2
    assert [judged("dq", 8.0), judged("out", 1.7), judged("dq", seqlen=512), judged("dq", options="")] == [LOGIC] * 4
    gain = healthy((1,), ("bfloat16",), 1).assign(**own)
    gain = bend(gain, {"tensor": "dq"}, error_rel=error, error_gain=0.02, error_gain_se=1e-4)
    assert facts_of(gain).label == LOGIC


def test_a_function_that_takes_no_dtype_is_told_each_one_s_reason() -> None:
    """One that checks for 16 bits, and does not compile in them."""
    bare = {**row("out", "bfloat16", 1, -1, 0), "tensor": None, "error_rel": None, "status": "failed"}
    short, wide = {"dtype": "bfloat16", "reason": "no compiler"}, {"dtype": "float32", "reason": "16 bits alone"}
    table = pd.DataFrame([bare | each | {"case_id": each["dtype"]} for each in (short, wide)])
    said = facts_of(table).sentence
    assert all(f"{each['reason']} in {each['dtype']}" in said for each in (short, wide)), said
    assert "in bfloat16" not in facts_of(table[:1]).sentence
