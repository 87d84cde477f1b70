"""The facts of a variant: what is wrong, in which dtypes, inputs, problems, sizes and ranks, and what is untried."""

from typing import Any

import pandas as pd
import pytest

from accuracy.core.errors import NOT_SHARED
from accuracy.results.table import FAILED, TOO_FEW_RANKS, UNSUPPORTED
from accuracy.verdict.diagnosis import too_little
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import HARDLY_CHECKED, MISSING_RANKS, ONE_RANK, ROUNDING
from tests.unit.verdict.synthetic import bend, explained, facts_of, healthy, row, rows

FINE = ("float32", "float64")
OWN = "fn=mine.py:attend"


def with_rows(table: pd.DataFrame, *more: dict[str, Any]) -> pd.DataFrame:
    return pd.concat([table, pd.DataFrame(more)], ignore_index=True)


def test_rounding_of_the_dtype_is_another_order_of_sums_and_more_is_a_race() -> None:
    """A race leads though other tensors look like a fault of logic, which leads before sums in another order."""
    for dtype, size, finding in (("float32", 4e-7, "other_order"), ("float32", 1e-2, "race"),
                                 ("bfloat16", 1e-2, "other_order"), ("bfloat16", 0.5, "race")):  # fmt: skip
        where = {"tensor": ("dq", "dk"), "dtype": dtype, "rank": (-1, 1)}
        differs = {"repeats_differ": 2.0, "repeats_runs": 1.0, "repeats_size": size}
        found = facts_of(bend(healthy(), where, **differs))
        assert (found.label, found.is_bug, found.finding) == ("nondeterministic", finding == "race", finding)
        assert (found.lead, found.numbers["repeats_size"]) == (("dq", "dk"), size)
        wrong = facts_of(bend(bend(healthy(), {"tensor": "out"}, error_rel=0.3), where, **differs))
        leads, others = ("nondeterministic", ("out",)) if finding == "race" else ("logic", ())
        assert (wrong.leads, wrong.label, wrong.others, wrong.is_bug) == (leads, "logic", others, True)


def test_gradients_of_an_out_that_is_only_coarse_are_no_bug_of_their_own() -> None:
    """P of the forward in float16, in a user's function: float32 inside does not explain it, and dq has a tenth of a
    float16's rounding, which is the mark of no format."""
    table = healthy().assign(options=OWN)
    for tensor, size in (("out", 1.2e-4), ("delta", 1.2e-4), ("dq", 4.5e-5)):
        table = bend(table, {"tensor": tensor, "dtype": FINE}, error_rel=size)
    follows = explained("dq", "gradients of the returned out and lse")
    found = facts_of(table, [follows])
    assert (found.label, found.lead, found.floors) == ("precision_floor", ("out",), {"float16": FINE})
    assert (found.following, found.proven) == (("dq",), [])
    assert facts_of(bend(table, {"tensor": "dq", "dtype": "float64"}, error_rel=0.1), [follows]).label == "logic"


def test_float32_inside_is_a_fact_of_a_function_and_of_a_package_and_wrong_in_our_variant() -> None:
    for options, is_bug in ((OWN, False), ("fn=accuracy.package.torch_context_parallel.allgather", False), ("", True)):
        table = healthy((1,), FINE).assign(options=options)
        found = facts_of(bend(table, {"dtype": "float64"}, error_rel=4e-7))
        assert (found.is_bug, "float32 inside" in found.sentence) == (is_bug, not is_bug), found.sentence


def test_a_package_may_have_blocks_of_its_own_in_float32_and_in_16_bits_adds_as_our_variants_do() -> None:
    """Blocks of another order of sums have several times the error of our kernel in float32, at one rank as at four."""
    package, more = "fn=accuracy.package.ringmaster.ring", "excess_rounding"
    for options, dtype, label in ((package, "float32", "rounding"), (OWN, "float32", "rounding"), ("", "float32", more),
                                  (package, "bfloat16", more)):  # fmt: skip
        table = bend(healthy((1,)).assign(options=options), {"tensor": "dk", "dtype": dtype}, error_rel=lambda x: 6 * x)
        assert facts_of(table).label == label, (options, dtype)


def test_a_cast_on_one_rank_is_no_bug_at_any_precision() -> None:
    """The last hop's keys in bfloat16: too large an error for a float32 case, too small for the mark of a format, and
    on one rank of four; in bfloat16 it is none."""
    table = bend(healthy(), {"tensor": ("out", "delta"), "dtype": FINE}, error_rel=3e-5)
    table = bend(table, {"tensor": ("out", "delta"), "dtype": FINE, "rank": (-1, 3)}, error_rel=4e-4)
    assert facts_of(table).label == "logic"
    cast = explained("out", "cast of k on the wire", cause="k of other ranks is cast to bfloat16")
    found = facts_of(table, [cast])
    assert (found.label, found.lead, found.floors) == ("precision_floor", ("out",), {"bfloat16": FINE})
    assert found.proven[0].is_cast
    assert facts_of(bend(table, {"tensor": "out", "dtype": FINE}, error_rel=0.3), [cast]).label == "logic"


def test_a_format_that_shows_on_gaussian_inputs_is_no_bug_where_other_inputs_cost_it_digits() -> None:
    """Scores in float16: on peaked inputs 18 times float16's unit roundoff, as float32's single device has 60 of its
    own, in bfloat16 too. 0.9 is more than that, and the float32 of peaked inputs is no dtype that was not measured."""
    table = bend(healthy(), {"tensor": ("dq", "dk"), "dtype": FINE}, error_rel=1.2e-4)

    def peaked(size: float) -> Facts:
        changes = {"inputs": "peaked", "error_rel": size}
        more = [each for dtype, single in (("bfloat16", 7.2e-3), ("float32", 3.6e-6))
                for each in rows("dq", (dtype,), single_device_rel=single, **changes)]  # fmt: skip
        return facts_of(with_rows(table, *more))

    assert (peaked(8.6e-3).label, peaked(8.6e-3).floors) == ("precision_floor", {"float16": FINE})
    wrong = peaked(0.9)
    assert (wrong.label, wrong.dtypes, wrong.only_dtypes) == ("logic", ("bfloat16",), ("bfloat16", "float32"))


def test_a_cast_beside_a_bug_and_gradients_that_are_as_coarse_as_out_are_not_called_wrong() -> None:
    table = bend(healthy(), {"tensor": ("out", "delta"), "dtype": FINE}, error_rel=1.2e-4)
    cast = explained("out", "cast of scores", cause="the scores are cast to float16")
    found = facts_of(bend(table, {"tensor": "dq"}, error_rel=0.3), [cast])
    assert (found.label, found.lead, found.coarser) == ("logic", ("dq",), ("out",))
    assert "out stops getting better at a coarser dtype (the scores are cast to float16)." in found.sentence
    found = facts_of(bend(table, {"tensor": "dq"}, error_rel=0.3))
    assert "out is as far off as a coarser dtype's rounding." in found.sentence
    found = facts_of(bend(table, {"tensor": "dq", "dtype": FINE}, error_rel=1.2e-4))
    assert (found.label, found.lead, found.consequences) == ("precision_floor", ("out",), ("dq",))


def test_a_function_that_takes_the_mean_off_all_keys_is_healthy() -> None:
    """Softmax does not see it: it rounds otherwise with other tokens behind, and so does dk of one key."""
    mine = healthy(dtypes=FINE, seeds=1).assign(options=OWN)
    table = bend(mine, {"tensor": ("out", "lse", "dq")}, future_differs=77, repeats_differ=0)
    table = bend(table, {"tensor": "dk", "dtype": "float32", "rank": (-1, 2)}, beyond=1, error_max=2e-6)
    assert facts_of(table).label == "rounding"
    for wrong in (bend(table, {"tensor": "out"}, error_rel=1e-4), bend(table, {"tensor": "dk"}, error_max=1e-3),
                  table.assign(options="")):  # fmt: skip
        assert facts_of(wrong).label == "logic"


def test_inputs_dtypes_ranks_and_numbers_of_ranks_that_are_wrong_and_right_are_named() -> None:
    several = [each for tensor, names in (("out", ("peaked", "tied")), ("lse", ("tied",))) for name in names
               for each in rows(tensor, ("float32",), inputs=name, nonfinite=9, error_rel=float("inf"))]  # fmt: skip
    assert facts_of(with_rows(healthy(), *several)).inputs == ("peaked", "tied")
    last = facts_of(bend(healthy(), {"tensor": "out", "rank": (-1, 3)}, error_rel=0.1))
    assert (last.ranks, last.size, last.settings) == ((3,), 4, ())
    assert "on the last rank of 4" in last.sentence
    table = bend(healthy(sizes=(1, 2, 3, 4)), {"tensor": "out", "world_size": (2, 4)}, error_rel=0.3)
    even, all_ = facts_of(table), facts_of(bend(table, {"tensor": "out", "world_size": 3}, error_rel=0.3))
    assert (even.sizes_wrong, even.sizes_right) == ((2, 4), (1, 3))
    assert (all_.sizes_wrong, all_.sizes_right) == ((2, 3, 4), (1,))
    assert (even.steps, all_.steps) == ("", "right to 1 rank, wrong from 2 on")
    assert (all_.growth != {}, all_.certain_growth) == (True, {})


def test_a_healthy_variant_s_ratios_are_told_width_by_width_whatever_the_order_of_rows() -> None:
    """16 bits say nothing of float32; float64 has no ratio; inputs that go further are named."""
    mine = bend(healthy((1,)), {"dtype": "float32", "tensor": "dv"}, error_rel=lambda old: 1.3 * old)
    tied = bend(pd.DataFrame(rows("out", ("bfloat16",), 1, inputs="tied")), {}, error_rel=lambda old: 1.07 * old)
    found = facts_of(pd.concat([mine, tied], ignore_index=True))
    assert [each.dtypes for each in found.widths] == [("bfloat16", "float16"), ("float32",), ("float64",)]
    assert [each.times for each in found.widths] == pytest.approx([1.1, 1.43, float("nan")], nan_ok=True)
    assert (found.widths[0].most, found.widths[0].inputs) == (pytest.approx(1.177), "tied")
    assert facts_of(pd.concat([tied, mine], ignore_index=True)).sentence == found.sentence


def test_what_was_not_tried_and_what_failed_is_named() -> None:
    mine = healthy().assign(options=OWN)
    assert {"fewer queries than keys", "a gradient of lse"} <= {*facts_of(mine).not_tried}
    assert "a gradient of lse" not in facts_of(mine[mine["tensor"] != "lse"]).not_tried
    for mask, is_missing in (("full", True), ("causal", False)):
        few = pd.concat([mine, mine.assign(seqlen_q=8, mask=mask)])
        told = {*facts_of(few).not_tried}
        assert "fewer queries than keys" not in told
        assert ("a causal mask over fewer queries than keys" in told) == is_missing
    assert {"windows", "odd numbers of ranks", "runs again"} <= {*facts_of(healthy()).not_tried}
    short = pd.concat([mine, mine.assign(mask="causal,window=10", seqlen=16), mine.assign(softcap=2.0, seqlen=129)])
    told = [each for each in facts_of(short).not_tried if "16 tokens" in each or "softcap" in each or "129" in each]
    assert told == ["windows over more than 16 tokens"]  # within one tile; 129 have two
    failed = [row("", "bfloat16", 1, -1, 0, status="failed", reason=f"ValueError: got {n}", seqlen=n, case_id=f"{n}")
              | {"tensor": None, "error_rel": float("nan")} for n in (7, 9)]  # fmt: skip
    found = facts_of(with_rows(healthy(), *failed))
    assert (found.label, found.failed, found.cases) == ("rounding", 2, 10)
    ((cases, first, reason),) = found.failures
    assert (cases, first.split(",")[0], reason) == (2, "seqlen=7", "ValueError: got 7")
    found = facts_of(with_rows(healthy(), *(failed[0] | {"case_id": f"{n}"} for n in range(9))))
    assert (found.label, found.is_bug, found.failed, found.cases) == (HARDLY_CHECKED, False, 9, 17)
    refused = [each | {"dtype": "float32", "reason": "RuntimeError: only 16 bits"} for each in failed]
    found = facts_of(with_rows(healthy(dtypes=("bfloat16",)), *refused))
    assert found.unmeasured == {"RuntimeError: only 16 bits": ("float32",)}
    found = facts_of(pd.DataFrame([failed[0] | {"reason": "rank 0: RuntimeError: the variant wrote to its inputs"}]))
    assert (found.label, found.finding, found.numbers["wrote"]) == ("invalid", "wrote", "wrote to its inputs")


def test_an_error_of_16_bits_that_grows_with_the_length_is_a_fact() -> None:
    """A sum over keys that is kept in 16 bits, where no lse shows it."""
    main = healthy((1,), ("bfloat16",), 1).assign(options=OWN, seqlen=528, seqlen_q=528)
    longer = main.assign(seqlen=2304, seqlen_q=2304, case_id="longer")
    for times in (1.1, 1.2):
        more = bend(longer, {"tensor": ("out", "delta")}, error_rel=lambda old, times=times: times * old)
        assert bool(facts_of(pd.concat([main, more], ignore_index=True)).kept_sum) == (times == 1.2)


def test_inputs_that_nobody_can_judge_for_excess_are_named() -> None:
    sink = healthy().assign(inputs="attention_sink")
    assert facts_of(pd.concat([healthy(), sink])).unjudged == ("attention_sink",)
    assert facts_of(pd.concat([healthy(), sink.assign(condition_sum=2.0, condition_rounding=1.4)])).unjudged == ()


def test_the_first_step_outside_of_the_band_and_wrong_pairs_are_named() -> None:
    """Findings of the forward are named before those of the backward, pairs that are left out before others."""
    step = {"case_id": "float64-4-0-gaussian", "way": "forward", "rank": 2, "step": 1, "source": 0, "tensor": "out",
            "count": 3, "query_begin": 9, "query_last": 9, "key_begin": 2, "key_last": 4, "error_rel": 0.5,
            "band": 0.1, "nonfinite": 0}  # fmt: skip
    kinds = [step | {"finding": name, "way": way} for name in ("shown", "counted again", "left out")
             for way in ("backward", "forward")]  # fmt: skip
    found = facts_of(healthy(), steps=[step, *kinds])
    first = found.step or {}
    assert (first["rank"], first["source"], first["error_rel"]) == (2, 0, 0.5)
    assert [row["way"] for row in found.account][:4] == ["forward"] * 3 + ["backward"]
    assert [row["finding"] for row in found.account][:4] == ["left out", "counted again", "shown", "left out"]
    assert facts_of(healthy(), steps=[step | {"error_rel": 0.01}]).step == {}
    assert facts_of(healthy()).step is None


FOREIGN = "fn=mine.ring,layout=bshd"
ALONE = f"the function asks for nothing, {NOT_SHARED}"


def without(sizes: tuple[int, ...], status: str, reason: str, options: str = FOREIGN) -> pd.DataFrame:
    """A healthy function on 1, 2 and 3 ranks, whose cases of some sizes have no numbers."""
    table = healthy((1, 2, 3), ("bfloat16",), seeds=2).assign(options=options)
    lost = table["world_size"].isin(sizes)
    ended = table[lost].drop_duplicates("case_id").assign(tensor=None, rank=-1, status=status, reason=reason)
    return pd.concat([table[~lost], ended], ignore_index=True)


def test_a_size_without_a_number_is_no_healthy_one() -> None:
    for lost, label in (
        (((), "ok", ""), ROUNDING),
        (((2, 3), UNSUPPORTED, f"{TOO_FEW_RANKS}1 ranks here"), ONE_RANK),
        (((3,), UNSUPPORTED, f"{TOO_FEW_RANKS}2 ranks here"), ROUNDING),
        (((2, 3), FAILED, "rank 1: RuntimeError: on purpose"), ONE_RANK),
        (((2, 3), UNSUPPORTED, "problem.seqlen=511 does not divide"), ONE_RANK),
        (((3,), FAILED, "rank 2: RuntimeError: on purpose"), MISSING_RANKS),
        (((3,), UNSUPPORTED, "problem.seqlen=514 does not divide"), MISSING_RANKS),
        (((2, 3), UNSUPPORTED, ALONE), ROUNDING),
        (((3,), UNSUPPORTED, "heads=4 do not divide", ""), ROUNDING),  # what a variant of ours says is no gap
    ):
        found = facts_of(without(*lost))
        assert found.label == label, found.sentence
        assert label != MISSING_RANKS or "3" in found.sentence
    alone, odd = without((2,), UNSUPPORTED, ALONE), without((3,), UNSUPPORTED, "problem.seqlen=32 does not divide")
    one_device = pd.concat([alone[alone["world_size"] < 3], odd[odd["world_size"] == 3]])
    assert too_little(one_device) == (None, {})  # its length need not divide
