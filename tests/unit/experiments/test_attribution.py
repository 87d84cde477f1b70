"""Shapley shares add up, and give a planted rounding to the place where it is."""

from itertools import chain, combinations

import pandas as pd
import pytest

from accuracy.core.number import shapley
from experiments.attribution.claims import Attribution, attributions
from tests.measuring import measure

PLACES = ("a", "b", "c")
SUBSETS = [frozenset(x) for x in chain.from_iterable(combinations(PLACES, n) for n in range(len(PLACES) + 1))]


def measured(*words: str) -> pd.DataFrame:
    return measure("variant=ring", "world_size=4", "problem.batch=1", *words)


def of_tensors(rows: pd.DataFrame) -> dict[str, Attribution]:
    return {each.tensor: each for each in attributions(rows)}


def test_independent_roundings_keep_their_own_squares_and_all_shares_add_up() -> None:
    squares = {"a": 4.0, "b": 1.0, "c": 0.0}
    value = {chosen: 0.5 + sum(squares[name] for name in PLACES if name not in chosen) for chosen in SUBSETS}
    assert shapley(value, PLACES) == pytest.approx(squares)
    value = {chosen: float(hash(tuple(sorted(chosen))) % 97) for chosen in SUBSETS}
    assert sum(shapley(value, PLACES).values()) == pytest.approx(value[frozenset()] - value[frozenset(PLACES)])


def test_an_accumulator_in_16_bits_is_blamed() -> None:
    """Published here: sums in bfloat16; finer: as the ring has them."""
    rows = measured("kernel=eager", "precision.dkv_accumulator=[bfloat16,accumulate]",
                    "precision.gradient_partial=[input,accumulate]")  # fmt: skip
    coarse = rows["precision"].str.contains("dkv_accumulator=bfloat16")
    others = rows["precision"].str.replace("dkv_accumulator=bfloat16", "").str.strip(",")
    rows = rows.assign(precision=others.where(coarse, others + ",dkv_accumulator=float32"))
    assert of_tensors(rows)["dk"].shares["dkv_accumulator"] > 0.2


def test_without_all_combinations_of_one_kernel_there_is_no_attribution() -> None:
    """What one kernel leaves out another has: that is no exchange of one place."""
    policies = "precision.partial=[input,accumulate]", "precision.gradient_partial=[input,accumulate]"
    rows = measured("kernel=[eager,chunked]", "problem.seqlen=64", *policies)
    assert attributions(rows)
    assert attributions(rows[rows["precision"] == ""]) == []
    both = (rows["precision"] == "") | (rows["precision"].str.count("accumulate") == 2)
    assert attributions(rows[both | (rows["kernel"] == "eager")])
    one_each = {"eager": "partial=accumulate", "chunked": "gradient_partial=accumulate"}
    assert attributions(rows[both | (rows["precision"] == rows["kernel"].map(one_each))]) == []
