"""Strangers' functions: the healthy are called healthy, the faulty are not, and what they may return is accepted."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accuracy
from accuracy.results import table
from accuracy.results.table import TENSORS
from accuracy.verdict import inside
from accuracy.verdict.label import BUGS, LOGIC, PRECISION_FLOOR, ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.measuring import only_grids
from tests.slow.foreign import functions
from tests.slow.foreign.functions import FAULTY, HEALTHY, eager, eager_out, forward_only, of_first_scale
from tests.strangers import attend
from tests.unit.fault import rates

SMALL = {"seqlen": 96, "heads": 4, "heads_kv": 2, "head_dim": 16, "device": "cpu"}
FEW_TOKENS = {"seqlen": 64, "heads": 2, "heads_kv": 1, "head_dim": 16, "device": "cpu"}
pytestmark = pytest.mark.xdist_group("foreign")


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_function_is_called_healthy(name: str, few_runs_again: None) -> None:
    each = HEALTHY[name]
    found = accuracy.diagnose({name: each.fn}, layout=each.layout, world_size=list(each.ranks), **SMALL)
    assert found.label == ROUNDING, (found.sentence, found.evidence)
    assert ("computes in float32 inside" in found.sentence) == each.float32, found.sentence


@pytest.mark.stress
@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_in_its_tensors_with_no_wrong_cause(name: str, tmp_path: Path, few_runs_again: None) -> None:
    fault = FAULTY[name]
    wrong = fault.wrong.split()
    may_be = {*wrong, *fault.may.split()} | ({"delta"} if "out" in wrong else set())
    how = {**SMALL, "layout": fault.layout, "world_size": list(fault.ranks), "output_dir": tmp_path / "run"}
    found = accuracy.diagnose({name: fault.fn}, **{key: how[key] for key in how if key not in fault.free})
    right = [tensor for tensor in TENSORS if tensor not in may_be]
    assert rates.detection(name, dict.fromkeys(wrong, ""), found.verdicts, right).caught, found.sentence
    assert found.label == PRECISION_FLOOR if name == "eager_lse_in_bfloat16" else found.is_bug, found.sentence
    assert fault.says in found.sentence
    cause = rates.explanation(name, fault.causes, table.read_side(tmp_path / "run", "hypotheses"), found.results)
    assert cause.right or not cause.proven, found.sentence


def returning(make: Any) -> Any:
    return lambda q, k, v, **how: make(*eager(q, k, v, **how))


RETURNED = {
    "the function returned None, expected out": lambda out, lse: None,
    "the function returned nothing in a tuple": lambda out, lse: (),
    "lse came as (1, 96, 4), expected (1, 4, 96): heads and": lambda out, lse: (out, lse.transpose(1, 2)),
    "out came as float32, expected bfloat16": lambda out, lse: out.float(),
    "lse came as int64, expected float32": lambda out, lse: (out, lse.long()),
}


def test_what_came_instead_of_a_result_is_said_and_lse_is_held_to_the_dtype_it_came_in() -> None:
    """flash-attn returns its state of dropout behind lse, transformers the weights in its place."""
    makes = [*RETURNED.values(), *(lambda out, lse, x=x: (out, lse.to(x)) for x in (torch.float64, torch.bfloat16))]
    makes += [lambda out, lse: (out, lse, None), lambda out, lse: (out, lse[..., None].expand(-1, -1, -1, 96))]
    rows = accuracy.measure({f"returns_{at}": returning(make) for at, make in enumerate(makes)}, **SMALL)
    for reason, what in zip(rows.loc[rows["tensor"].isna(), "reason"], RETURNED, strict=True):
        assert reason.startswith(f"WrongResult: {what}")
    measured = rows[(rows["status"] == "ok") & (rows["rank"] == 0)].groupby("tensor")["x_floor"]
    assert (measured.size()[["out", "lse"]].tolist(), measured.max().max() < 4) == ([4, 3], True)


def test_no_gradient_is_a_reason_and_a_missing_part_of_one_is_zero() -> None:
    def in_part(q: Any, k: Any, v: Any, **how: Any) -> Any:
        return eager_out(q, k.detach(), v, **how)

    def refuses(q: Any, k: Any, v: Any, **how: Any) -> Any:
        if q.requires_grad:
            raise NotImplementedError("FlexAttention does not support backward on CPU.")
        return eager_out(q, k, v, **how)

    rows = accuracy.measure({"none": forward_only, "refuses": refuses, "in_part": in_part}, **SMALL)
    part = rows[(rows["variant"] == "in_part") & (rows["rank"] == 0)].set_index("tensor")
    assert part.loc["dk", "error_rel"] == pytest.approx(1.0, rel=1e-12)  # a quotient of two float64 norms
    assert part.loc[["dq", "dv"], "error_rel"].max() < 2**-7
    none = rows[rows["variant"] != "in_part"].groupby("tensor")["status"].unique().map(list)
    assert none[["out", "dq", "dk", "dv"]].tolist() == [["ok"], *[["unsupported"]] * 3]


def test_few_numbers_whose_errors_point_one_way_by_chance_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 rows: without an allowance for chance some seeds' functions are accused."""
    shape: dict[str, Any] = {"seqlen": 16, "heads": 2, "heads_kv": 2, "head_dim": 128, "softmax_scale": 0.2}
    tables = accuracy.measure(eager_out, dtype=["float32", "float64"], seed=[20, 23], device="cpu", **shape)
    accused = {}
    for deviations in (inside.DEVIATIONS, 0.0):
        monkeypatch.setattr(inside, "DEVIATIONS", deviations)
        accused[deviations] = sum(verdicts(rows)["label"].isin(BUGS).any() for _, rows in tables.groupby("seed"))
    assert accused[5.0] == 0 < accused[0.0]


def test_a_result_of_an_earlier_call_s_scale_is_named_an_ignored_scale_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_no_scale(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        return eager(q, k, v, causal=causal, softmax_scale=q.shape[-1] ** -0.5, group=None)

    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids("reruns"))
    how: dict[str, Any] = FEW_TOKENS | {"softmax_scale": 0.2, "world_size": 1}
    found = [accuracy.diagnose(fn, **how) for fn in (of_first_scale, of_no_scale)]
    assert [("of the call before" in each.sentence, each.is_bug) for each in found] == [(True, True), (False, True)]


@pytest.mark.parametrize("few_grids", [("shape_heads",)], indirect=True)
def test_a_case_that_is_wrong_once_is_no_condition(few_grids: None) -> None:
    called: set[Any] = set()

    def first_call(q: Any, k: Any, v: Any, **how: Any) -> Any:
        key = q.shape, k.shape, q.dtype, how["causal"]
        out, lse = eager(q, k, v, **how)
        wrong = not how["causal"] and q.shape[0] == 2 and key not in called
        called.add(key)
        return (1.5 * out if wrong else out), lse

    found = accuracy.diagnose(first_call, **FEW_TOKENS, world_size=1)
    assert (found.is_bug, "mask=full" in found.sentence) == (True, False), found.sentence
    assert found.sentence.startswith("out differs from run to run")


def test_float32_inside_is_a_fact_on_all_inputs_in_float64_and_hides_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes add up to more than a rounding, tied inputs cancel, and scores below -10 are no matter of precision."""

    def clamped(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:
        how = {"wide": torch.float32, "change": lambda scores: scores.clamp(min=-10)}
        return attend(q, k, v, causal=causal, scale=softmax_scale, **how)[0]

    def diagnosed(fn: Any, *grids: str) -> accuracy.Diagnosis:
        with monkeypatch.context() as patch:
            patch.setattr("accuracy.config.resolve.with_given", only_grids("shape_shifted", "probes", *grids))
            return accuracy.diagnose(fn, **FEW_TOKENS | {"seqlen": 192}, dtype=["float32", "float64"], world_size=1)

    right, wrong = diagnosed(eager_out, "peaked", "tied"), diagnosed(clamped)
    assert (right.label, right.is_bug) == (ROUNDING, False), right.sentence
    wrong_in = {*wrong.verdicts.query("tensor == 'out' and seqlen == 192 and label == 'logic'")["dtype"]}
    assert wrong_in == {"float32", "float64"}
    assert not (wrong.verdicts["finding"] == "index_value").any()


def test_scores_in_16_bits_of_few_queries_and_33_000_keys_round_and_another_scale_is_found() -> None:
    """Weights are below float16's least normal number, 32 rows scatter, and scores that spread by 1.4 move further."""

    def scaled(q: Any, k: Any, v: Any, *, softmax_scale: float, **how: Any) -> Any:
        return functions.softmax_in_float32(q, k, v, softmax_scale=1.05 * softmax_scale, **how)

    how: dict[str, Any] = {"seqlen": 33_000, "seqlen_q": 8, "mask": "full", "heads": 4, "heads_kv": 2, "head_dim": 32}
    short = {"healthy": functions.softmax_in_float32, "scaled": scaled}
    rows = accuracy.measure(short, layout="bhsd", dtype="float16", device="cpu", softmax_scale=0.25, **how)
    wrong = verdicts(rows).query(f"label in {BUGS}")
    assert {*wrong["variant"]} == {"scaled"}
    assert (rows.query("variant == 'healthy' and tensor == 'out' and rank == -1")["error_rel"] > 4 * 2.1e-4).all()


def test_a_sum_that_overflows_float16_is_found_by_equal_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids("probes"))

    def overflowing(q: Any, k: Any, v: Any, **how: Any) -> Any:
        out, lse = eager(q, k, v, **how)
        weights = (lse - torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()).amax(-1) * how["softmax_scale"]).exp()
        full = (2 * weights > 65504).transpose(1, 2)[..., None]
        return torch.where(full & (q.dtype == torch.float16), 0.0, out), lse

    how: dict[str, Any] = {"seqlen": 33_000, "seqlen_q": 4, "mask": "full", "heads": 1, "heads_kv": 1, "head_dim": 8}
    found = accuracy.diagnose(overflowing, device="cpu", dtype=["bfloat16", "float16"], world_size=1, **how)
    assert found.is_bug
    assert {*found.verdicts.loc[found.verdicts["label"] == LOGIC, "dtype"]} == {"float16"}
