"""A cause is named where it is proven, and what follows from it; planted faults get the cause that all cases prove."""

import math
from typing import Any

import pandas as pd
import pytest
import torch

from accuracy.verdict.facts import Cause, Facts
from accuracy.verdict.proof import causes
from tests import planted
from tests.planted import Plain, Plant
from tests.unit.verdict.synthetic import bend, explained, factor, facts_of, healthy


def known(rows: list[dict[str, Any]], *tensors: str) -> Facts:
    """The facts of a table whose tensors are wrong in every dtype, with these hypotheses."""
    return facts_of(bend(healthy(seeds=1), {"tensor": tensors}, error_rel=0.3), rows)


def of_cases(plant: Plant, *cases: tuple[str, ...]) -> dict[str, Cause]:
    """The causes of a planted fault, by these cases."""
    found = [planted.rows(plant, *words) for words in cases]
    return causes(pd.concat([x for _, x in found]), pd.DataFrame([x.identity() for x, _ in found]))


def test_a_cause_is_named_where_its_residual_is_rounding_and_its_rivals_are_far() -> None:
    best, rival = explained("dq", "the idea", 1.2e-14), explained("dq", "another", 1.1e-13, from_best=1e-13)
    found = known([best, rival], "dq")
    assert [each.text for each in found.proven] == ["dq has the idea"]
    assert "dq has the idea" in found.sentence
    for bad in ([best | {"residual": 1.6e-14}, rival], [best, rival | {"residual": 9e-14}]):
        found = known(bad, "dq")
        assert found.proven == []
        assert "the idea" not in found.sentence


def test_a_scale_of_some_inputs_alone_is_no_cause() -> None:
    """Scores below some number that are cut off are equal on shifted inputs, as those of a scale of 0 are."""
    shifted = healthy(seeds=1, dtypes=("float64",)).assign(inputs="shifted")
    shifted["case_id"] = shifted["case_id"].str.replace("gaussian", "shifted")
    wrong = bend(shifted, {"tensor": "out"}, error_rel=0.8)
    case = {"case_id": "float64-4-0-shifted", "residual": 1e-15}
    proven = [explained("out", "scale", cause="the softmax scale is 0 (0), not 0.25", **case),
              explained("out", "another", **case | {"residual": 1.0}, from_best=1.0)]  # fmt: skip
    for ordinary, names in ((0.0, ()), (0.3, ("scale",))):
        gaussian = bend(healthy(seeds=1), {"tensor": "out"}, error_rel=ordinary)
        found = facts_of(pd.concat([gaussian, wrong]), proven)
        assert tuple(name for each in found.proven for name in each.names) == names
        assert found.is_bug


def test_hypotheses_with_the_same_prediction_are_named_together_and_fitted_ones_are_not() -> None:
    rows = [explained("dq", "the idea"), explained("dq", "its twin"), explained("dq", "a fit", freedom=3),
            explained("dq", "another", 1.0, from_best=1.0)]  # fmt: skip
    assert known(rows, "dq").causes["dq"].names == ("the idea", "its twin")
    rows = [explained("dq", "a wrong lse", 1e-15, freedom=64), explained("dq", "a factor", 1.9e-14, from_best=1.8e-14,
            freedom=1), explained("dq", "another", 1.0, from_best=1.0)]  # fmt: skip
    assert known(rows, "dq").causes["dq"].names == ("a factor",)


def test_in_16_bits_dq_does_not_tell_a_wrong_lse_from_a_wrong_delta() -> None:
    words = {"cause": "the backward is given a wrong lse and delta, all else in dq being right"}
    for case, said in (("float64-4-0-gaussian", "lse and delta"), ("bfloat16-4-0-gaussian", "lse or delta")):
        row = explained("dq", "another lse or delta (backward)", case_id=case, **words)
        assert said in known([row], "dq").causes["dq"].text


def test_consequences_are_named_as_such_only_where_they_are_proven() -> None:
    lead = [explained("out", "the idea"), explained("out", "another", 1.0, from_best=1.0)]
    follows, same = explained("dq", "gradients of the returned out and lse"), explained("dk", "the idea")
    found = known([*lead, follows, same, explained("dv", "nothing known", 0.1)], "out", "dq", "dk", "dv")
    assert (found.lead, found.following, found.consequences) == (("out",), ("dq", "dk"), ("dq", "dk", "dv"))


def test_a_proven_factor_of_the_size_of_a_cast_is_a_bug() -> None:
    bent = bend(healthy(), {"tensor": "dq", "dtype": ("float16", "float32", "float64")}, error_rel=2.0**-8)
    labels = {name: facts_of(bent, [explained("dq", name)]).label for name in ("a constant factor", "cast of dq")}
    assert facts_of(bent).label == labels["cast of dq"] == "precision_floor"
    assert labels["a constant factor"] == "logic"


def swap(plain: Plain) -> dict[str, torch.Tensor]:
    """dv of the first two heads are exchanged: of two heads that is any roll, of four it is none."""
    right = plain.results()
    return right | {"dv": torch.cat([right["dv"][:, :, [1, 0]], right["dv"][:, :, 2:]], 2)}


def stay(plain: Plain) -> dict[str, torch.Tensor]:
    """dv stays one hop from home. On a large problem shards of other ranks are not tried."""
    right = plain.results()
    return right | {"dv": right["dv"].roll(-right["dv"].shape[1] // 3, 1)}


def tile(plain: Plain) -> dict[str, torch.Tensor]:
    """A tile of 16 keys gets no gradient: all of them in 16 tokens, and in shorter sequences."""
    right = plain.results()
    return right | {"dk": right["dk"] * (torch.arange(plain.q.shape[1]) >= 16)[:, None, None]}


LARGE = ("world_size=3", "problem.seqlen=480", "problem.heads=12", "problem.heads_kv=6")
ONE = "world_size=1"


@pytest.mark.parametrize(("plant", "cases", "text"), [
    (stay, (("world_size=3", "problem.seqlen=24"), LARGE), "dv has the shard of rank r + 1"),
    (swap, ((ONE, "problem.heads_kv=2"), (ONE, "problem.heads_kv=4")), "dv has the heads"),
    (tile, [(ONE, f"problem.seqlen={length}") for length in (8, 16, 40)], "dk is zero in tokens 0 to 15"),
])  # fmt: skip
def test_the_cause_that_all_cases_prove_is_named_before_one_of_some(
    plant: Plant, cases: tuple[tuple[str, ...], ...], text: str
) -> None:
    (found,) = of_cases(plant, *cases).values()
    assert found.proven
    assert found.text.startswith(text)
    assert (found.proving, found.refuting) == (("heads_kv=2", "4") if plant is swap else ("", ""))


def test_of_two_faults_in_one_function_both_causes_are_told() -> None:
    """The backward forgets the window and the slope of the softcap; a noise beside one of them has no cause."""
    window, capped = (explained("dq", name, case_id=name) for name in ("no window", "no slope"))
    rivals = [explained("dq", "another", 1.0, from_best=1.0, case_id=each["case_id"]) for each in (window, capped)]
    main = healthy(seeds=1, dtypes=("float64",))
    table = pd.concat([main, main.assign(case_id="no window", mask="causal,window=10"),
                       main.assign(case_id="no slope", softcap=2.0)], ignore_index=True)  # fmt: skip
    bent = bend(table, {"tensor": "dq", "case_id": ("no window", "no slope")}, error_rel=0.3)
    found = facts_of(bent, [window, capped, *rivals])
    assert all(f"dq has {each}" in found.sentence for each in ("no window", "no slope")), found.sentence
    one = facts_of(bent, [window, capped | {"residual": 0.5}, *rivals])
    assert "dq has no slope" not in one.sentence


def test_of_two_factors_that_one_case_cannot_tell_apart_the_one_of_all_cases_is_named() -> None:
    """dk is averaged over ranks, not summed; at 5 ranks that is also the softmax scale, 0.2, once more."""

    def averaged(plain: Plain) -> dict[str, torch.Tensor]:
        right = plain.results()
        return right | {"dk": right["dk"] / sizes.pop(0)}

    sizes = [5, 4]
    words = [(f"world_size={size}",) for size in (4, 5)]
    (one,), (both,) = of_cases(averaged, words[1]).values(), of_cases(averaged, *words).values()
    assert {"dk is 1/W times what it should be", "dk is the softmax scale times what it should be"} <= {*one.clauses}
    assert both.text == "dk is 1/W times what it should be"


def test_a_constant_that_a_factor_is_by_chance_in_one_case_is_not_named() -> None:
    """The backward has the scale of as many dims as a tile of 2^n has; of 40, sqrt(40/64) is 1/(0.2 sqrt(40)), too."""

    def padded(plain: Plain) -> dict[str, torch.Tensor]:
        dim = plain.q.shape[-1]
        right = plain.results()
        return right | {"dk": right["dk"] * math.sqrt(dim / 2 ** math.ceil(math.log2(dim)))}

    def text(*dims: int) -> str:
        (found,) = of_cases(padded, *(("world_size=1", f"problem.head_dim={dim}") for dim in dims)).values()
        return found.text

    assert text(40) == "dk is 1/(the softmax scale x sqrt(D)) times what it should be"
    times = "dk is {} times what it should be"
    assert {*text(40, 24).split("; elsewhere ")} == {times.format(0.790569415), times.format(0.8660254038)}
    assert text(40, 160) == times.format(0.790569415)


def test_a_factor_near_1_is_no_power_of_two_in_16_bits() -> None:
    """1.004 and 1 + 2^-8 differ by less than a factor can be known by there; in float64 by much more."""
    known, fitted = factor("dk", "(1 + 2^-8)", freedom=0), factor("dk", "1.004")
    for dtype, told in (("float16", "1.004"), ("float64", "(1 + 2^-8)")):
        main = healthy((1,), (dtype,), seeds=1)
        case = {"case_id": main["case_id"].iloc[0], "dtype": dtype}
        bent = bend(main, {"tensor": "dk"}, error_rel=0.004)
        assert f"dk is {told} times" in facts_of(bent, [known | case, fitted | case]).sentence


def test_a_plain_mask_s_cause_is_named_before_pairs_that_prove_more_cases_under_windows() -> None:
    shape = {"world_size": 4, "heads_kv": 4, "heads": 4, "batch": 1, "head_dim": 16, "seqlen": 16}
    masks = ("causal,window=10", "causal,window=4", "causal")
    about = pd.DataFrame([{"case_id": mask, "dtype": "float64", "inputs": "gaussian", "mask": mask, **shape}
                          for mask in masks])  # fmt: skip
    pairs = [explained("dq", "pairs", freedom=0, case_id=mask) for mask in masks[:2]]
    plain = explained("dq", "a key", case_id="causal"), explained("dq", "pairs", freedom=12, case_id="causal")
    rivals = [explained("dq", "another", 1.0, from_best=1.0, case_id=mask) for mask in masks]
    found = causes(pd.DataFrame(sorted([*pairs, *plain, *rivals], key=lambda each: each["residual"])), about)
    assert (found["dq"].names, found["dq"].cases) == (("a key",), frozenset({"causal"}))


def test_an_lse_that_is_a_partial_beside_a_right_out_is_not_said_of_both() -> None:
    def plant(plain: Plain) -> dict[str, torch.Tensor]:
        own = torch.block_diag(*[torch.ones(10, 10)] * 4).to(plain.mask)
        return plain.results() | {"lse": plain.but(mask=plain.mask * own).results()["lse"]}

    assert of_cases(plant, ("world_size=4",))["lse"].clauses[0].startswith("lse is the partial of the keys of")


def test_a_cause_makes_no_bug_of_a_fact_in_a_problem_that_does_not_prove_it() -> None:
    """Float32 inside is a fact of the main problem; of the one with a batch, whose case proves a cause, it is none."""
    fine = ("float32", "float64")
    main = bend(healthy((1,), fine).assign(options="fn=mine.py:attend"), {"dtype": "float64"}, error_rel=2e-7)
    batch = main[main["seed"] == 0].assign(batch=2)
    batch["case_id"] = "two " + batch["dtype"]
    cause = explained("out", "the idea", case_id="two float64")
    table = pd.concat([main, batch], ignore_index=True)
    wrong = facts_of(bend(table, {"tensor": "out", "batch": 2}, error_rel=0.5), [cause])
    assert (wrong.label, wrong.settings, wrong.sound_dtypes) == ("logic", (("batch=2",),), ())
    proven = facts_of(table, [cause])  # the main problem is as far off and was not explained: no right neighbour
    assert (facts_of(table).label, proven.label, proven.settings) == ("rounding", "logic", ())
