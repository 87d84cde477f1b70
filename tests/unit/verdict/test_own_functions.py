"""A user's function may round more than this package's kernels do, which is a fact; what is farther off is a bug."""

import math
from typing import Any

import pandas as pd

from accuracy.verdict.floor import LEVEL
from accuracy.verdict.label import LOGIC, ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.unit.verdict.synthetic import bend, facts_of, healthy, label, row, rows


def test_a_function_that_computes_in_tf32_whatever_comes_is_held_to_that_in_float64() -> None:
    """Values beyond the bound of float64 are none then; a factor that TF32 does not make is a fault."""
    table = healthy().assign(options="arithmetic=tf32,fn=mine.py:attend")
    fine = {"dtype": ("float32", "float64"), "tensor": ("out", "dq", "dk", "dv", "delta")}
    rounds = bend(table, fine, error_rel=3e-4, error_rms=3e-4, significand_bits=24.0)
    rounds = bend(rounds, fine | {"dtype": "float64"}, beyond=7.0, error_max=1e-3)
    assert {*verdicts(rounds).query("tensor != 'lse'")["label"]} == {"rounding"}
    exact = bend(rounds, {"dtype": "float32", "tensor": "out"}, error_rel=1e-7, error_rms=1e-7)
    for wrong in (bend(rounds, fine, error_gain=0.01, error_gain_se=1e-6), exact):
        assert label(wrong, "out", "float64") in ("logic", "precision_floor")


def test_scores_rounded_to_16_bits_are_no_bug_of_a_user_s_function_and_more_is() -> None:
    """On peaked inputs, of condition 27, once is 0.41 u times that, above the band; this package's kernels keep scores
    in float32, and Gaussian inputs excuse nothing. Without that number and lse, scores spread by 27."""

    def of_scores(times: float, options: str = "fn=mine.py:attend", inputs: str = "peaked", known: float = 27) -> str:
        error = times * LEVEL * 2.0**-8 * 27
        more = {"condition_softmax": known, "inputs_options": f"std={math.sqrt(27)}", "options": options}
        peaked = rows("out", ("bfloat16",), inputs=inputs, error_rel=error, **more)
        return label(pd.DataFrame(peaked), "out", "bfloat16")

    assert [of_scores(times) for times in (1.0, 3.9, 4.1)] == ["rounding", "rounding", "logic"]
    assert [of_scores(times, known=math.nan) for times in (3.9, 4.1)] == ["rounding", "logic"]
    assert (of_scores(3.9, options=""), of_scores(3.9, inputs="gaussian")) == ("logic", "logic")


def test_an_lse_of_16_bit_scores_may_be_off_one_way_on_tied_inputs_alone() -> None:
    """By at most a unit roundoff; a scaled q of tied inputs has few values, whose rounding has a mean."""

    def judged(inputs: str, units: float, outward: float) -> str:
        error = units * 2.0**-8
        own = {"inputs": inputs, "error_rel": error, "error_rms": error, "error_outward": outward * error}
        table = pd.DataFrame(rows("lse", ("bfloat16",), options="fn=mine.py:attend", **own))
        return str(verdicts(table).set_index("tensor")["finding"]["lse"])

    found = [judged(*each) for each in (("gaussian", 0.2, 0.1), ("gaussian", 0.2, 0.5), ("tied", 0.2, 0.5))]
    assert found == ["scores", "floor", "scores"]
    assert judged("tied", 1.1, 0.5) != "scores"


def test_a_bias_that_a_rounded_scale_makes_is_rounding_of_a_user_s_dq_and_dk_alone() -> None:
    """Of 1.1 u away from zero, where the tensor's own factor is 1.4 u; of 1 u it is beyond what the factor makes."""

    def judged(tensor: str, factor: float, options: str = "fn=mine.py:attend") -> str:
        changes = {"error_outward": 1.1 * 2.0**-24, "error_gain": factor * 2.0**-24, "error_gain_se": 2.0**-28}
        table = healthy(seeds=4).assign(options=options)
        return label(bend(table, {"tensor": tensor, "dtype": "float32", "rank": -1}, **changes), tensor, "float32")

    assert [judged("dk", 1.4), judged("dq", 1.4)] == ["rounding"] * 2
    assert [judged("dk", 1.0), judged("dk", 1.4, options=""), judged("dv", 1.4)] == ["biased"] * 3


def test_gradients_of_a_user_s_function_in_16_bits_inside_are_coarse_and_farther_ones_are_wrong() -> None:
    """1.74 u of bfloat16 on all elements, as dk of a flash backward in 16 bits has, in a float32 case; 2.9 u is more
    than four times three roundings. out, and this package's variants, have no more than four roundings."""
    own = {"options": "fn=mine.py:attend"}

    def judged(tensor: str, units: float, **more: str) -> str:
        error = units * 2.0**-8
        return label(bend(healthy().assign(**more), {"tensor": tensor}, error_rel=error), tensor, "float32")

    assert [judged("dk", units, **own) for units in (0.2, 1.74, 2.9)] == ["precision_floor", "precision_floor", "logic"]
    assert [judged("dk", 1.74), judged("out", 1.74, **own), judged("out", 1.6)] == ["logic", "logic", "precision_floor"]


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
