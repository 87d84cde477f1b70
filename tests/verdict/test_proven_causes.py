"""A cause is named where it is proven, and what follows from it; a sentence says the same in any order of rows."""

from typing import Any

import pandas as pd

from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.verdict import verdicts
from tests.verdict.synthetic import NOT_TRIED, bend, healthy, no_more


def explained(tensor: str, hypothesis: str, residual: float, **changes: Any) -> dict[str, Any]:
    """A row of `hypotheses/` of the healthy table's first float64 case."""
    content = {"case_id": "float64-4-0-gaussian", "tensor": tensor, "family": "one", "hypothesis": hypothesis,
               "parameter": "", "cause": f"{tensor} has {hypothesis}", "freedom": 0, "residual": residual,
               "expected": 1e-14, "from_best": 0.0, "tried": 9}  # fmt: skip
    return content | changes


def said_of(rows: list[dict[str, Any]], *tensors: str) -> Any:
    """The diagnosis of a table whose tensors are wrong in every dtype, with these hypotheses."""
    bent = bend(healthy(), {"tensor": tensors}, error_rel=0.3)
    steps, _ = no_more()
    (said,) = diagnoses(verdicts(bent), bent, steps, pd.DataFrame(rows))
    return said


def test_a_cause_is_named_where_its_residual_is_rounding_and_its_rivals_are_far() -> None:
    best, rival = explained("dq", "the idea", 1.2e-14), explained("dq", "another", 1.1e-13, from_best=1e-13)
    assert said_of([best, rival], "dq").sentence == "dq is wrong at any precision: dq has the idea." + NOT_TRIED
    for bad in ([best | {"residual": 1.6e-14}, rival], [best, rival | {"residual": 9e-14}]):
        sentence = said_of(bad, "dq").sentence
        assert "no cause was proven" in sentence
        assert "the idea" not in sentence


def test_hypotheses_with_the_same_prediction_are_named_together_and_fitted_ones_are_not() -> None:
    rows = [explained("dq", "the idea", 1e-15), explained("dq", "its twin", 1e-15),
            explained("dq", "a fit", 1e-15, freedom=3), explained("dq", "another", 1.0, from_best=1.0)]  # fmt: skip
    assert said_of(rows, "dq").sentence == (
        "dq is wrong at any precision: dq has the idea or, which is the same here, dq has its twin." + NOT_TRIED
    )


def test_consequences_are_named_as_such_only_where_they_are_proven() -> None:
    lead = [explained("out", "the idea", 1e-15), explained("out", "another", 1.0, from_best=1.0)]
    follows = explained("dq", "gradients of the returned out and lse", 1e-15)
    same, other = explained("dk", "the idea", 1e-15), explained("dv", "nothing known", 0.1)
    sentence = said_of([*lead, follows, same, other], "out", "dq", "dk", "dv").sentence
    assert sentence == (
        "out is wrong at any precision: out has the idea. dq and dk follow from that; dv is wrong too." + NOT_TRIED
    )


def test_a_proven_factor_of_the_size_of_a_cast_is_a_bug() -> None:
    bent = bend(healthy(), {"tensor": "dq", "dtype": ("float16", "float32", "float64")}, error_rel=2.0**-8)
    steps, none = no_more()
    (cast,) = diagnoses(verdicts(bent), bent, steps, none)
    assert cast.label == "precision_floor"
    rows = pd.DataFrame([explained("dq", "a constant factor", 1e-15)])
    (factor,) = diagnoses(verdicts(bent), bent, steps, rows)
    assert factor.label == "logic"
    rows = pd.DataFrame([explained("dq", "cast of dq", 1e-15)])
    (cast,) = diagnoses(verdicts(bent), bent, steps, rows)
    assert cast.label == "precision_floor"


def test_the_order_of_rows_changes_no_sentence() -> None:
    """Real ranks write the shapes tried beside the problem before some of the problem's own rows."""
    swept = healthy(dtypes=("float32",), seeds=1).assign(seqlen=16, case_id="swept")
    main = healthy()
    tables = [pd.concat(each, ignore_index=True) for each in ([main, swept], [swept, main])]
    said = {diagnoses(verdicts(table), table, *no_more())[0].sentence for table in tables}
    assert len(said) == 1
    assert "in bfloat16 and float16, 1.10 times in float32, rounding in float64. Not tried: " in said.pop()
