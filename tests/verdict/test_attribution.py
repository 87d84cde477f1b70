"""Shapley shares add up, and give a planted rounding to the place where it is."""

from itertools import chain, combinations

import pytest

from accuracy.core.number import shapley
from accuracy.verdict.attribution import FINAL, Attribution, attributions
from accuracy.verdict.headline import attributed
from tests.measuring import measure

PLACES = ("a", "b", "c")


def subsets(names: tuple[str, ...]) -> list[frozenset[str]]:
    return [frozenset(x) for x in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1))]


def test_independent_roundings_keep_their_own_squares() -> None:
    squares = {"a": 4.0, "b": 1.0, "c": 0.0}
    value = {chosen: 0.5 + sum(squares[name] for name in PLACES if name not in chosen) for chosen in subsets(PLACES)}
    assert shapley(value, PLACES) == pytest.approx(squares)


def test_shares_add_up_whatever_the_places_do_to_each_other() -> None:
    value = {chosen: float(hash(tuple(sorted(chosen))) % 97) for chosen in subsets(PLACES)}
    total = sum(shapley(value, PLACES).values())
    assert total == pytest.approx(value[frozenset()] - value[frozenset(PLACES)])


def test_a_rings_excess_is_its_16_bit_partials() -> None:
    rows = measure("variant=ring", "world_size=4", "kernel=eager", "dtype=bfloat16", "problem.seqlen=256",
                   "kernel.eager.probability_dtype=[input,accumulate]", "precision.partial=[input,accumulate]",
                   "precision.gradient_partial=[input,accumulate]", "precision.merge=[sigmoid,double]")  # fmt: skip
    found = {each.tensor: each for each in attributions(rows)}
    for each in found.values():
        assert sum(each.shares.values()) == pytest.approx(1.0)
    assert found["out"].shares["partial"] > 0.1
    assert abs(found["out"].shares["merge"]) < 0.01
    assert found["dk"].excess["gradient_partial"] > 0.8
    assert found["dq"].shares[FINAL] > 0.2


def test_an_accumulator_in_16_bits_is_blamed() -> None:
    """Published here: sums in bfloat16; finer: as the ring has them."""
    sums = "precision.dkv_accumulator=[bfloat16,accumulate]"
    rows = measure("variant=ring", "world_size=4", "kernel=eager", "problem.seqlen=256", sums,
                   "precision.gradient_partial=[input,accumulate]")  # fmt: skip
    coarse = rows["precision"].str.contains("dkv_accumulator=bfloat16")
    others = rows["precision"].str.replace("dkv_accumulator=bfloat16", "").str.strip(",")
    rows = rows.assign(precision=others.where(coarse, others + ",dkv_accumulator=float32"))
    found = {each.tensor: each for each in attributions(rows)}
    assert found["dk"].shares["dkv_accumulator"] > 0.2


def test_a_table_without_combinations_has_no_attribution() -> None:
    assert attributions(measure("variant=ring", "world_size=2", "kernel=eager")) == []


def test_combinations_of_several_kernels_are_none() -> None:
    """What one kernel leaves out another has: that is no exchange of one place."""
    policies = "precision.partial=[input,accumulate]", "precision.gradient_partial=[input,accumulate]"
    rows = measure("variant=ring", "world_size=2", "kernel=[eager,chunked]", "problem.seqlen=64", *policies)
    assert attributions(rows)
    both = (rows["precision"] == "") | (rows["precision"].str.count("accumulate") == 2)
    assert attributions(rows[both | (rows["kernel"] == "eager")])
    one_each = {"eager": "partial=accumulate", "chunked": "gradient_partial=accumulate"}
    assert attributions(rows[both | (rows["precision"] == rows["kernel"].map(one_each))]) == []


def test_dtypes_and_sizes_are_one_sentence() -> None:
    def found(tensor: str, place: str, share: float, dtype: str = "bfloat16") -> Attribution:
        return Attribution("ring", dtype, 8, tensor, {}, {place: share, "merge": 0.1}, 1.2)

    many = [found("out", "partial", 1.0), found("dq", "gradient_partial", 0.994, "float16"),
            found("dq", "gradient_partial", 0.98), found("dk", "gradient_partial", 1.02)]  # fmt: skip
    assert attributed(many) == (
        "Of ring's excess over single device, 100% in out comes from the block partial (out);"
        " 98% to 100% in dq, dk comes from the block partial (gradients)."
    )
