"""What a diagnosis said of faults that no corpus had, and says rightly now."""

import pandas as pd
import torch

from accuracy.results.hypothesis import FOLLOWS
from accuracy.verdict.diagnosis import Diagnosis, diagnoses
from accuracy.verdict.proof import causes
from accuracy.verdict.verdict import verdicts
from tests import planted
from tests.planted import Plain, Plant
from tests.verdict.synthetic import bend, healthy, no_more, row


def said(table: pd.DataFrame, hypotheses: pd.DataFrame | None = None) -> Diagnosis:
    steps, none = no_more()
    (found,) = diagnoses(verdicts(table), table, steps, none if hypotheses is None else hypotheses)
    return found


def test_of_two_factors_that_one_case_cannot_tell_apart_the_one_of_all_cases_is_named() -> None:
    """dk is averaged over ranks, not summed; at 5 ranks that is also the softmax scale, 0.2, once more."""

    def of_size(size: int) -> Plant:
        return lambda plain: (right := plain.results()) | {"dk": right["dk"] / size}

    found = [planted.rows(of_size(size), f"world_size={size}") for size in (4, 5)]
    (alone,) = causes(found[1][1], pd.DataFrame([found[1][0].identity()])).values()
    assert {"dk is 1/W times what it should be", "dk is the softmax scale times what it should be"} <= {*alone.clauses}
    (both,) = causes(pd.concat([x for _, x in found]), pd.DataFrame([x.identity() for x, _ in found])).values()
    assert both.text == "dk is 1/W times what it should be"


def test_the_simplest_cause_is_named_though_a_large_problem_tries_only_some() -> None:
    """dv stays one hop from home. On a large problem blocks are fitted, and shards of other ranks are not tried."""

    def plant(plain: Plain) -> dict[str, torch.Tensor]:
        right = plain.results()
        return right | {"dv": right["dv"].roll(-right["dv"].shape[1] // 3, 1)}

    found = [planted.rows(plant, "world_size=3", f"problem.seqlen={tokens}", *heads) for tokens, *heads in (
        (24,), (480, "problem.heads=12", "problem.heads_kv=6"))]  # fmt: skip
    (large,) = causes(found[1][1], pd.DataFrame([found[1][0].identity()])).values()
    assert large.text.startswith("dv misses the block")
    (both,) = causes(pd.concat([x for _, x in found]), pd.DataFrame([x.identity() for x, _ in found])).values()
    assert both.text == "dv has the shard of rank r + 1"


def test_a_cause_that_other_cases_rule_out_says_where_it_holds() -> None:
    """dv of the first two heads are exchanged; of two heads that is any roll, of four it is none."""

    def plant(plain: Plain) -> dict[str, torch.Tensor]:
        right = plain.results()
        return right | {"dv": torch.cat([right["dv"][:, :, [1, 0]], right["dv"][:, :, 2:]], 2)}

    found = [planted.rows(plant, "world_size=1", f"problem.heads_kv={heads}") for heads in (2, 4)]
    cause = causes(pd.concat([x for _, x in found]), pd.DataFrame([x.identity() for x, _ in found]))["dv"]
    assert "dv has the heads rolled by 1" in cause.text
    assert cause.text.endswith(" (proven with heads_kv=2, not with 4)")


def test_gradients_of_an_out_that_is_only_coarse_are_no_bug_of_their_own() -> None:
    """P of the forward in float16, in a user's function: float32 inside does not explain it, and dq has a tenth of a
    float16's rounding, which is the mark of no format."""
    table = healthy().assign(options="fn=mine.py:attend")
    for tensor, size in (("out", 1.2e-4), ("delta", 1.2e-4), ("dq", 4.5e-5)):
        table = bend(table, {"tensor": tensor, "dtype": ("float32", "float64")}, error_rel=size)
    names = {"case_id": "float64-4-0-gaussian", "tensor": "dq", "family": "follows", "hypothesis": FOLLOWS,
             "parameter": "", "cause": FOLLOWS, "freedom": 0, "residual": 1e-15, "expected": 1e-14, "from_best": 0.0,
             "tried": 9}  # fmt: skip
    found = said(table, pd.DataFrame([names]))
    assert found.label == "precision_floor"
    assert found.sentence.startswith("out is only as good as float16 in float32 and float64; no cause was tried.")
    assert "dq follows from that" in found.sentence
    worse = said(bend(table, {"tensor": "dq", "dtype": "float64"}, error_rel=0.1), pd.DataFrame([names]))
    assert worse.label == "logic"


def test_a_dtype_that_was_not_measured_on_the_inputs_that_show_it_is_not_called_right() -> None:
    rows = [row("out", dtype, 4, rank, 0, inputs="peaked", error_rel=0.9)
            for dtype in ("bfloat16", "float32") for rank in (-1, 0, 1, 2, 3)]  # fmt: skip
    sentence = said(pd.concat([healthy(), pd.DataFrame(rows)], ignore_index=True)).sentence
    assert "out is wrong in bfloat16 and float32, the only dtypes measured, on peaked inputs only" in sentence


def test_larger_numbers_of_ranks_that_are_right_are_named() -> None:
    """The last hop is left out where the number of ranks is a power of two."""
    table = bend(healthy(sizes=(1, 2, 3, 4)), {"tensor": "out", "world_size": (2, 4)}, error_rel=0.3)
    assert "at 2, 4 ranks (not at 1, 3)" in said(table).sentence
    table = bend(table, {"tensor": "out", "world_size": 3}, error_rel=0.3)
    assert "with 2 ranks or more, not with one" in said(table).sentence
    swept = bend(
        healthy(sizes=(3, 4, 5), seeds=1).assign(seqlen=480), {"tensor": "dk", "world_size": (3, 5)}, error_rel=1.4
    )
    sentence = said(pd.concat([healthy(sizes=(1, 2, 4)), swept], ignore_index=True)).sentence
    assert "dk is wrong at any precision, only at 3 and 5 ranks" in sentence
    shapes = [bend(healthy(sizes=(1, 2, 4), seeds=1).assign(seqlen=length), {"tensor": "out", "world_size": size},
                   error_rel=0.3) for length, size in ((30, 2), (60, 4))]  # fmt: skip
    sentence = said(pd.concat([healthy(sizes=(1, 2, 4)), *shapes], ignore_index=True)).sentence
    assert "out is wrong at any precision, only with seqlen=30 or seqlen=60; no cause" in sentence


def test_a_function_that_takes_the_mean_off_all_keys_is_healthy() -> None:
    """Softmax does not see it: it rounds otherwise with other tokens behind, and so does dk of one key."""
    mine = healthy(dtypes=("float32", "float64"), seeds=1).assign(options="fn=mine.py:attend")
    table = bend(mine, {"tensor": ("out", "lse", "dq")}, future_differs=77, repeats_differ=0)
    table = bend(table, {"tensor": "dk", "dtype": "float32", "rank": (-1, 2)}, beyond=1, error_max=2e-6)
    assert said(table).label == "rounding"
    for wrong in (bend(table, {"tensor": "out"}, error_rel=1e-4), bend(table, {"tensor": "dk"}, error_max=1e-3),
                  table.assign(options="")):  # fmt: skip
        assert said(wrong).label == "logic"


def test_a_function_that_writes_to_its_inputs_is_told_so_and_cases_that_failed_are_counted() -> None:
    bare = row("out", "float32", 4, -1, 0, case_id="one more") | {
        "tensor": None,
        "error_rel": float("nan"),
        "status": "failed",
    }
    wrote = pd.DataFrame([bare | {"reason": "rank 0: RuntimeError: the variant wrote to its inputs"}])
    assert said(wrote).sentence.startswith("v wrote to its inputs in float32; a case in which it does is not judged.")
    raised = pd.DataFrame([bare | {"reason": "rank 0: RuntimeError: no causal mask here", "seqlen": 8}])
    assert ". 1 of 17 cases failed. Not tried: " in said(pd.concat([healthy(), raised], ignore_index=True)).sentence


def test_an_lse_that_is_a_partial_beside_a_right_out_is_not_said_of_both() -> None:
    def plant(plain: Plain) -> dict[str, torch.Tensor]:
        own = torch.block_diag(*[torch.ones(10, 10)] * 4).to(plain.mask)
        return plain.results() | {"lse": plain.but(mask=plain.mask * own).results()["lse"]}

    case, rows = planted.rows(plant)
    assert (
        causes(rows, pd.DataFrame([case.identity()]))["lse"].clauses[0].startswith("lse is the partial of the keys of")
    )


def test_what_only_a_mask_shows_is_said_with_the_mask() -> None:
    """Short sequences are not masked, which a full mask does not show."""
    short = [healthy(seeds=1).assign(seqlen=length, mask=mask, case_id=f"{length} {mask}")
             for length in (8, 16) for mask in ("causal", "full")]  # fmt: skip
    table = pd.concat([healthy(), *short], ignore_index=True)
    table = bend(table, {"tensor": "out", "seqlen": (8, 16), "mask": "causal"}, error_rel=0.9)
    assert "only with mask=causal and seqlen=8 or seqlen=16; no cause" in said(table).sentence


def test_what_came_together_is_said_together() -> None:
    """delta of the first batch item is taken for all; the only problem of two items has other heads, too."""
    two = healthy(seeds=1).assign(batch=2, heads=8, heads_kv=8, case_id="two")
    table = bend(pd.concat([healthy(), two], ignore_index=True), {"tensor": "dq", "batch": 2}, error_rel=0.9)
    assert (
        "dq is wrong at any precision, only with batch=2 and heads=8 and heads_kv=8; no cause" in said(table).sentence
    )


def test_one_wrong_rank_at_the_end_is_the_last_one() -> None:
    """v of the hop before is taken on the last hop, which only the last rank sees."""
    table = bend(healthy(), {"tensor": "out", "rank": (-1, 3)}, error_rel=0.1)
    assert "out is wrong at any precision, on the last rank of 4; no cause" in said(table).sentence


def test_a_gradient_of_lse_and_fewer_queries_are_said_to_be_untried() -> None:
    mine = healthy().assign(options="fn=mine.py:attend")
    assert "fewer queries than keys" in said(mine).sentence
    assert "a gradient of lse" in said(mine).sentence
    assert "a gradient of lse" not in said(healthy()).sentence
    assert "a gradient of lse" not in said(mine[mine["tensor"] != "lse"]).sentence


def test_a_cast_on_one_rank_is_no_bug_at_any_precision() -> None:
    """The last hop's keys in bfloat16: too large an error for a float32 case, too small for the mark of a format, and
    on one rank of four; in bfloat16 it is none."""
    table = bend(healthy(), {"tensor": ("out", "delta"), "dtype": ("float32", "float64")}, error_rel=3e-5)
    table = bend(table, {"tensor": ("out", "delta"), "dtype": ("float32", "float64"), "rank": (-1, 3)}, error_rel=4e-4)
    assert said(table).label == "logic"
    row_of = {"case_id": "float64-4-0-gaussian", "tensor": "out", "family": "cast", "parameter": "bfloat16",
              "hypothesis": "cast of k on the wire", "cause": "k of other ranks is cast to bfloat16", "freedom": 0,
              "residual": 1e-15, "expected": 1e-14, "from_best": 0.0, "tried": 9}  # fmt: skip
    found = said(table, pd.DataFrame([row_of]))
    assert found.label == "precision_floor"
    assert found.sentence.startswith("out is only as good as bfloat16 in float32 and float64: k of other ranks")
    far = bend(table, {"tensor": "out", "dtype": ("float32", "float64")}, error_rel=0.3)
    assert said(far, pd.DataFrame([row_of])).label == "logic"


def test_inputs_that_several_findings_name_are_named_once() -> None:
    """Tied inputs alone break lse, peaked and tied ones out."""
    rows = [row(tensor, "float32", 4, rank, 0, inputs=name, nonfinite=9, error_rel=float("inf"))
            for tensor, names in (("out", ("peaked", "tied")), ("lse", ("tied",))) for name in names
            for rank in (-1, 0, 1, 2, 3)]  # fmt: skip
    sentence = said(pd.concat([healthy(), pd.DataFrame(rows)], ignore_index=True)).sentence
    assert "on peaked and tied inputs only" in sentence


def test_a_cause_of_all_cases_is_named_before_one_of_small_cases() -> None:
    """A tile of 16 keys gets no gradient: all of them in 16 tokens, and in shorter sequences."""

    def plant(plain: Plain) -> dict[str, torch.Tensor]:
        right = plain.results()
        return right | {"dk": right["dk"] * (torch.arange(plain.q.shape[1]) >= 16)[:, None, None]}

    found = [planted.rows(plant, "world_size=1", f"problem.seqlen={length}") for length in (8, 16, 40)]
    cause = causes(pd.concat([x for _, x in found]), pd.DataFrame([x.identity() for x, _ in found]))["dk"]
    assert cause.text == "dk is zero in tokens 0 to 15 of 40"


def test_a_format_that_shows_on_gaussian_inputs_is_no_bug_where_other_inputs_cost_it_digits() -> None:
    """Scores in float16: on peaked inputs 18 times float16's unit roundoff, as float32's single device has 60 of its
    own, in bfloat16 too. 0.9 is more than that, and the float32 of peaked inputs is no dtype that was not measured."""
    table = bend(healthy(), {"tensor": ("dq", "dk"), "dtype": ("float32", "float64")}, error_rel=1.2e-4)

    def peaked(size: float) -> pd.DataFrame:
        rows = [row("dq", dtype, 4, rank, 0, inputs="peaked", error_rel=size, single_device_rel=single)
                for dtype, single in (("bfloat16", 7.2e-3), ("float32", 3.6e-6))
                for rank in (-1, 0, 1, 2, 3)]  # fmt: skip
        return pd.concat([table, pd.DataFrame(rows)], ignore_index=True)

    found = said(peaked(8.6e-3))
    assert found.label == "precision_floor"
    assert found.sentence.startswith("dq and dk are only as good as float16 in float32 and float64; no")
    wrong = said(peaked(0.9)).sentence
    assert wrong.startswith("dq is wrong in bfloat16, measured in bfloat16 and float32 only, on peaked inputs only")


def test_the_cast_that_makes_other_tensors_coarse_is_named_beside_a_bug() -> None:
    table = bend(healthy(), {"tensor": ("out", "delta"), "dtype": ("float32", "float64")}, error_rel=1.2e-4)
    table = bend(table, {"tensor": "dq"}, error_rel=0.3)
    names = {"case_id": "float64-4-0-gaussian", "tensor": "out", "family": "cast", "parameter": "float16",
             "hypothesis": "cast of scores", "cause": "the scores are cast to float16", "freedom": 0,
             "residual": 1e-15, "expected": 1e-14, "from_best": 0.0, "tried": 9}  # fmt: skip
    sentence = said(table, pd.DataFrame([names])).sentence
    assert "out stops getting better at a coarser dtype (the scores are cast to float16)" in sentence


def test_gradients_that_are_as_coarse_as_out_are_not_called_wrong() -> None:
    table = bend(healthy(), {"dtype": ("float32", "float64"), "tensor": ("out", "delta", "dq")}, error_rel=1.2e-4)
    sentence = said(table).sentence
    assert sentence.startswith(
        "out is only as good as float16 in float32 and float64; no cause was tried. dq is coarse"
    )


def test_a_healthy_variant_s_ratios_are_told_width_by_width() -> None:
    """16 bits say nothing of float32; float64 has no ratio; inputs that go further are named."""
    mine = bend(healthy((1,)), {"dtype": "float32", "tensor": "dv"}, error_rel=lambda old: 1.3 * old)
    tied = pd.DataFrame([row("out", "bfloat16", 1, rank, 0, inputs="tied") for rank in (-1, 0)])
    table = pd.concat([mine, bend(tied, {}, error_rel=lambda old: 1.07 * old)], ignore_index=True)
    far = (
        "1.10 times the single-device kernel's error at 1 rank in bfloat16 and float16 (1.18 on tied inputs),"
        " 1.43 times in float32, rounding in float64."
    )
    assert f"v merely rounds: every tensor but lse is within {far}" in said(table).sentence
