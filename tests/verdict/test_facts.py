"""The facts of a variant: what is wrong, in which dtypes, inputs, problems, sizes and ranks, and what is untried."""

import random
from typing import Any

import pandas as pd
import pytest

from accuracy.verdict.facts import Facts
from accuracy.verdict.verdict import verdicts
from tests.fault import measure
from tests.fault.planted import race
from tests.verdict.synthetic import bend, explained, facts_of, healthy, row

FINE = ("float32", "float64")


def with_rows(table: pd.DataFrame, *rows: dict[str, Any]) -> pd.DataFrame:
    return pd.concat([table, pd.DataFrame(rows)], ignore_index=True)


def on(inputs: str, tensor: str, dtypes: tuple[str, ...], **changes: Any) -> list[dict[str, Any]]:
    return [row(tensor, dtype, 4, rank, 0, inputs=inputs, **changes) for dtype in dtypes for rank in (-1, 0, 1, 2, 3)]


@pytest.mark.parametrize(
    ("dtype", "size", "finding"),
    [("float32", 4e-7, "other_order"), ("float32", 1e-2, "race"), ("bfloat16", 1e-2, "other_order"),
     ("bfloat16", 0.5, "race")],
)  # fmt: skip
def test_rounding_of_the_dtype_is_another_order_of_sums_and_more_is_a_race(
    dtype: str, size: float, finding: str
) -> None:
    where = {"tensor": ("dq", "dk"), "dtype": dtype, "rank": (-1, 1)}
    differs = {"repeats_differ": 2.0, "repeats_runs": 1.0, "repeats_size": size}
    found = facts_of(bend(healthy(), where, **differs))
    assert (found.label, found.is_bug, found.finding) == ("nondeterministic", finding == "race", finding)
    assert (found.lead, found.numbers["repeats_size"]) == (("dq", "dk"), size)
    wrong = facts_of(bend(bend(healthy(), {"tensor": "out"}, error_rel=0.3), where, **differs))
    assert (wrong.leads, wrong.label, wrong.others, wrong.is_bug) == ("nondeterministic", "logic", ("out",), True)


def test_a_planted_race_leads_though_other_cases_look_like_a_fault_of_logic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "CHANCE", random.Random(0))
    once = measure.results(["race_often"], "~also.trace", "~also.reruns", "~also.explain")
    results = pd.concat([once, measure.results(["race_often"], *race.RARELY, "reruns.repeat=40")])
    assert "logic" in set(verdicts(results)["label"])
    found = facts_of(results)
    assert (found.leads, found.finding, found.lead) == ("nondeterministic", "race", ("out", "lse"))


def test_gradients_of_an_out_that_is_only_coarse_are_no_bug_of_their_own() -> None:
    """P of the forward in float16, in a user's function: float32 inside does not explain it, and dq has a tenth of a
    float16's rounding, which is the mark of no format."""
    table = healthy().assign(options="fn=mine.py:attend")
    for tensor, size in (("out", 1.2e-4), ("delta", 1.2e-4), ("dq", 4.5e-5)):
        table = bend(table, {"tensor": tensor, "dtype": FINE}, error_rel=size)
    follows = explained("dq", "gradients of the returned out and lse")
    found = facts_of(table, [follows])
    assert (found.label, found.lead, found.floors) == ("precision_floor", ("out",), {"float16": FINE})
    assert (found.following, found.proven) == (("dq",), [])
    assert facts_of(bend(table, {"tensor": "dq", "dtype": "float64"}, error_rel=0.1), [follows]).label == "logic"


def test_a_dtype_that_was_not_measured_on_the_inputs_that_show_it_is_not_called_right() -> None:
    found = facts_of(with_rows(healthy(), *on("peaked", "out", ("bfloat16", "float32"), error_rel=0.9)))
    assert found.dtypes == found.only_dtypes == ("bfloat16", "float32")
    assert (found.sound_dtypes, found.inputs) == ((), ("peaked",))


def test_numbers_of_ranks_that_are_wrong_and_right_are_named() -> None:
    """The last hop is left out where the number of ranks is a power of two."""

    def sizes(found: Facts) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return found.sizes_wrong, found.sizes_right

    table = bend(healthy(sizes=(1, 2, 3, 4)), {"tensor": "out", "world_size": (2, 4)}, error_rel=0.3)
    assert sizes(facts_of(table)) == ((2, 4), (1, 3))
    found = facts_of(bend(table, {"tensor": "out", "world_size": 3}, error_rel=0.3))
    assert sizes(found) == ((2, 3, 4), (1,))
    assert "with 2 ranks or more (right with 1)" in found.sentence


def test_settings_that_only_wrong_problems_have_are_named() -> None:
    def settings(*more: pd.DataFrame, **where: Any) -> Any:
        table = pd.concat([healthy(sizes=(1, 2, 4)), *more], ignore_index=True)
        return facts_of(bend(table, where, error_rel=0.9) if where else table).settings

    swept = bend(healthy(sizes=(3, 4, 5), seeds=1).assign(seqlen=480), {"tensor": "dk", "world_size": (3, 5)},
                 error_rel=1.4)  # fmt: skip
    assert settings(swept) == (("world_size=3", "world_size=5"),)
    shapes = [bend(healthy(sizes=(1, 2, 4), seeds=1).assign(seqlen=length), {"tensor": "out", "world_size": size},
                   error_rel=0.3) for length, size in ((30, 2), (60, 4))]  # fmt: skip
    assert settings(*shapes) == (("seqlen=30", "seqlen=60"),)
    short = [healthy(seeds=1).assign(seqlen=length, mask=mask, case_id=f"{length} {mask}")
             for length in (8, 16) for mask in ("causal", "full")]  # fmt: skip
    masked = settings(*short, tensor="out", seqlen=(8, 16), mask="causal")
    assert masked == (("mask=causal",), ("seqlen=8", "seqlen=16"))
    two = healthy(seeds=1).assign(batch=2, heads=8, heads_kv=8, case_id="two")
    assert settings(two, tensor="dq", batch=2) == (("batch=2",), ("heads=8",), ("heads_kv=8",))


def test_the_ranks_that_are_wrong_are_named() -> None:
    """v of the hop before is taken on the last hop, which only the last rank sees."""
    found = facts_of(bend(healthy(), {"tensor": "out", "rank": (-1, 3)}, error_rel=0.1))
    assert (found.ranks, found.size, found.settings) == ((3,), 4, ())
    assert "on the last rank of 4" in found.sentence


def test_inputs_that_several_findings_name_are_named_once() -> None:
    """Tied inputs alone break lse, peaked and tied ones out."""
    rows = [each for tensor, names in (("out", ("peaked", "tied")), ("lse", ("tied",))) for name in names
            for each in on(name, tensor, ("float32",), nonfinite=9, error_rel=float("inf"))]  # fmt: skip
    assert facts_of(with_rows(healthy(), *rows)).inputs == ("peaked", "tied")


def test_a_function_that_takes_the_mean_off_all_keys_is_healthy() -> None:
    """Softmax does not see it: it rounds otherwise with other tokens behind, and so does dk of one key."""
    mine = healthy(dtypes=FINE, seeds=1).assign(options="fn=mine.py:attend")
    table = bend(mine, {"tensor": ("out", "lse", "dq")}, future_differs=77, repeats_differ=0)
    table = bend(table, {"tensor": "dk", "dtype": "float32", "rank": (-1, 2)}, beyond=1, error_max=2e-6)
    assert facts_of(table).label == "rounding"
    for wrong in (bend(table, {"tensor": "out"}, error_rel=1e-4), bend(table, {"tensor": "dk"}, error_max=1e-3),
                  table.assign(options="")):  # fmt: skip
        assert facts_of(wrong).label == "logic"


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
        rows = [each for dtype, single in (("bfloat16", 7.2e-3), ("float32", 3.6e-6))
                for each in on("peaked", "dq", (dtype,), error_rel=size, single_device_rel=single)]  # fmt: skip
        return facts_of(with_rows(table, *rows))

    assert (peaked(8.6e-3).label, peaked(8.6e-3).floors) == ("precision_floor", {"float16": FINE})
    wrong = peaked(0.9)
    assert (wrong.label, wrong.dtypes, wrong.only_dtypes) == ("logic", ("bfloat16",), ("bfloat16", "float32"))


def test_a_cast_beside_a_bug_and_gradients_that_are_as_coarse_as_out_are_not_called_wrong() -> None:
    table = bend(healthy(), {"tensor": ("out", "delta"), "dtype": FINE}, error_rel=1.2e-4)
    cast = explained("out", "cast of scores", cause="the scores are cast to float16")
    found = facts_of(bend(table, {"tensor": "dq"}, error_rel=0.3), [cast])
    assert (found.label, found.lead, found.coarser) == ("logic", ("dq",), ("out",))
    assert "out stops getting better at a coarser dtype (the scores are cast to float16)" in found.sentence
    found = facts_of(bend(table, {"tensor": "dq", "dtype": FINE}, error_rel=1.2e-4))
    assert (found.label, found.lead, found.consequences) == ("precision_floor", ("out",), ("dq",))
    assert "no cause was tried. dq is coarse too." in found.sentence


def test_a_healthy_variant_s_ratios_are_told_width_by_width() -> None:
    """16 bits say nothing of float32; float64 has no ratio; inputs that go further are named."""
    mine = bend(healthy((1,)), {"dtype": "float32", "tensor": "dv"}, error_rel=lambda old: 1.3 * old)
    tied = pd.DataFrame([row("out", "bfloat16", 1, rank, 0, inputs="tied") for rank in (-1, 0)])
    found = facts_of(pd.concat([mine, bend(tied, {}, error_rel=lambda old: 1.07 * old)], ignore_index=True))
    assert [each.dtypes for each in found.widths] == [("bfloat16", "float16"), ("float32",), ("float64",)]
    assert [each.times for each in found.widths] == pytest.approx([1.1, 1.43, float("nan")], nan_ok=True)
    assert (found.widths[0].most, found.widths[0].inputs) == (pytest.approx(1.177), "tied")


def test_the_order_of_rows_changes_no_fact() -> None:
    """Real ranks write the shapes tried beside the problem before some of the problem's own rows."""
    swept, main = healthy(dtypes=("float32",), seeds=1).assign(seqlen=16, case_id="swept"), healthy()
    one, other = (facts_of(pd.concat(each, ignore_index=True)) for each in ([main, swept], [swept, main]))
    assert one.sentence == other.sentence
    assert len(one.widths) == 3


def test_what_was_not_tried_and_what_failed_is_named() -> None:
    mine = healthy().assign(options="fn=mine.py:attend")
    assert {"fewer queries than keys", "a gradient of lse"} <= {*facts_of(mine).not_tried}
    assert facts_of(healthy()).not_tried == (
        "a full mask", "windows", "packed documents", "a softcap", "dropout", "lengths that ranks cannot share",
        "fewer queries than keys", "grouped heads", "batches", "odd numbers of ranks", "runs again",
        "more than 512 tokens or 4 ranks",
    )  # fmt: skip
    assert "a gradient of lse" not in facts_of(mine[mine["tensor"] != "lse"]).not_tried
    failed = [row("", "bfloat16", 1, -1, 0, status="failed", reason=f"ValueError: got {n}", seqlen=n, case_id=f"{n}")
              | {"tensor": None, "error_rel": float("nan")} for n in (7, 9)]  # fmt: skip
    found = facts_of(with_rows(healthy(), *failed))
    assert (found.label, found.failed, found.cases) == ("rounding", 2, 18)
    ((cases, first, reason),) = found.failures
    assert (cases, first.split(",")[0], reason) == (2, "seqlen=7", "ValueError: got 7")
    wrote = failed[0] | {"reason": "rank 0: RuntimeError: the variant wrote to its inputs"}
    found = facts_of(pd.DataFrame([wrote]))
    assert (found.label, found.finding, found.numbers["wrote"]) == ("invalid", "wrote", "wrote to its inputs")


def test_inputs_that_nobody_can_judge_for_excess_are_named() -> None:
    sink = healthy().assign(inputs="attention_sink")
    assert facts_of(pd.concat([healthy(), sink])).unjudged == ("attention_sink",)
    assert facts_of(pd.concat([healthy(), sink.assign(condition_sum=2.0, condition_rounding=1.4)])).unjudged == ()


def test_the_first_step_outside_of_the_band_and_what_does_not_add_up_are_named() -> None:
    """Of the forward come first, of these pairs before sums."""
    step = {"case_id": "float64-4-0-gaussian", "way": "forward", "rank": 2, "step": 1, "source": 0, "tensor": "out",
            "count": 3, "query_begin": 9, "query_last": 9, "key_begin": 2, "key_last": 4, "error_rel": 0.5,
            "state": "partial", "band": 0.1, "nonfinite": 0}  # fmt: skip
    kinds = [step | {"finding": name, "way": way} for name in ("changed", "shown", "missing")
             for way in ("backward", "forward")]  # fmt: skip
    found = facts_of(healthy(), steps=[step, *kinds])
    assert found.step is not None
    assert (found.step["rank"], found.step["source"], found.step["error_rel"]) == (2, 0, 0.5)
    assert [(row["way"], row["finding"]) for row in found.account][:4] == [
        ("forward", "missing"), ("forward", "shown"), ("forward", "changed"), ("backward", "missing"),
    ]  # fmt: skip
    first, account = [line for line in found.evidence if line.startswith(("The first step", "Accounting"))]
    assert "forward of rank 2 with the keys of rank 0, block 1 (query 9, keys 2 to 4)" in first
    assert "3 visible pairs of a query and a key in no kernel call" in account
    assert account.endswith("; 3 more findings.")
    assert facts_of(healthy(), steps=[step | {"error_rel": 0.01}]).step == {}
    assert facts_of(healthy()).step is None
