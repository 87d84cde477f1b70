import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from accuracy.config import find
from accuracy.core.case import Case, Part
from accuracy.core.errors import ConfigError
from accuracy.execute.plan import Planned, plan
from accuracy.inputs import drawing
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.observe import shared
from accuracy.results.table import METRICS
from accuracy.runtime.rounding import round_to
from tests.measuring import configuration, measure

SMALL = ("problem.seqlen=64", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8")


def planned(*words: str, free_bytes: int | None = None) -> list[Planned]:
    return plan(configuration(*SMALL, *words), free_bytes)


def one_case(*words: str) -> Case:
    (only,) = planned("variant=ring", "world_size=2", *words)
    return only.case


def test_every_list_is_an_axis() -> None:
    plans = planned(
        "variant=[ring,bpt_ring]", "variant.bpt_ring.query_chunk=[8,16]", "kernel=[eager,torch_flash]",
        "kernel.eager.probability_dtype=[input,float32]", "inputs=[gaussian,outliers]", "inputs.outliers.scale=[5,10]",
        "dtype=[float32,float64]", "world_size=[1,2]", "seed=[0,1]", "problem.mask=[causal,full]",
        "problem.heads_kv=[1,4]",
    )  # fmt: skip
    assert len(plans) == 3 * 3 * 3 * 2 * 2 * 2 * 2 * 2
    assert all(each.unsupported is None for each in plans)


def test_cases_that_share_inputs_and_reference_are_neighbours() -> None:
    plans = planned("dtype=[bfloat16,float32]", "seed=[0,1]", "problem.mask=[causal,full]")
    keys = [shared(each.case) for each in plans]
    changes = 1 + sum(a != b for a, b in itertools.pairwise(keys))
    assert changes == len(set(keys)) == 8


def test_what_gives_the_same_numbers_is_one_case() -> None:
    for words, cases in (
        ("variant=ring dtype=[float32,float32]", 1),
        ("variant=[single_device,ring,llama3] world_size=1 precision.merge=[sigmoid,double,logsumexp]", 5),
        ("variant=[bpt,ring] world_size=1 precision.wire=[input,float32]", 3),
        # llama3 publishes `input` for what ring publishes as `accumulate`: neither word makes a case twice
        ("variant=[llama3,ring] precision.dkv_accumulator=[accumulate,input]", 4),
        ("variant=ring kernel=[torch_flash,auto]", 1),
    ):
        assert len(planned("world_size=2", *words.split())) == cases, words


def test_a_case_is_named_after_what_differs_from_its_own_schedules() -> None:
    for variant, knob, text in (
        ("ring", "merge=sigmoid", ""),
        ("ring", "merge=double", "merge=double"),
        ("llama3", "dkv_accumulator=input", ""),
        ("llama3_ring", "dkv_accumulator=accumulate", ""),
        ("llama3_ring", "dkv_accumulator=input", "dkv_accumulator=input"),
    ):
        published, changed = (
            planned(f"variant={variant}", "world_size=2", *words)[0].case for words in ((), (f"precision.{knob}",))
        )
        assert (changed.id == published.id, changed.precision_text) == (not text, text)


def test_unsupported_cases_stay_in_the_plan_with_their_reason() -> None:
    plans = planned("variant=[single_device,ring]", "world_size=[1,2]")
    unsupported = [each for each in plans if each.unsupported]
    assert len(plans) == 4
    assert [(each.case.variant.name, each.case.world_size) for each in unsupported] == [("single_device", 2)]
    assert "use world_size=1, not 2" in str(unsupported[0].unsupported)


def test_memory_unsupporteds_the_large_problems_only() -> None:
    words = ("variant=ring", "world_size=2", "problem.seqlen=[64,65536]", "problem.batch=[1,64]")
    needed = sorted(bytes_needed(each.case) for each in planned(*words))
    unsupported = [each for each in planned(*words, free_bytes=needed[-2]) if each.unsupported]
    assert [(each.case.problem.seqlen, each.case.problem.batch) for each in unsupported] == [(65536, 64)]
    assert f"{needed[-1] / 2**30:.1f} GiB of" in str(unsupported[0].unsupported)


def test_a_value_that_nothing_can_use_stops_the_run() -> None:
    for words, told in (
        (["variant=[ring,single_device]", "world_size=[2,4]"], "^variant=single_device: single_device runs on one"),
        (["kernel=[torch_flash,flash_attn]"], "^kernel=flash_attn: kernel flash_attn needs a CUDA device"),
        (["kernel=flash_attn", "unusable=record"], "^kernel flash_attn needs a CUDA device"),
        (["kernel=[flash_attn,torch_efficient]", "unusable=record"], "needs a CUDA device"),
    ):
        with pytest.raises(ConfigError, match=told):
            planned("device=cpu", *words)


def test_a_value_that_nothing_can_use_is_recorded_where_that_is_asked_for() -> None:
    """An experiment names kernels that a machine may lack; the user's own kernel=every names none at all."""
    for words in (("kernel=[eager,flash_attn]", "unusable=record"), ("kernel=every",)):
        plans = planned("device=cpu", "variant=single_device", "world_size=1", *words)
        reasons = {each.case.kernel.name: each.unsupported for each in plans}
        assert reasons["eager"] is None
        assert str(reasons["flash_attn"]).startswith("kernel flash_attn needs a CUDA device")


def test_every_kernel_is_every_file_but_those_left_out() -> None:
    words = ("device=cpu", "variant=single_device", "world_size=1", "kernel=every")
    every = {each.case.kernel.name for each in planned(*words)}
    assert every == set(find.sources("kernel"))
    fewer = {each.case.kernel.name for each in planned(*words, "kernel.every.exclude=[eager,torch_math]")}
    assert every - fewer == {"eager", "torch_math"}


def test_auto_is_the_first_kernel_that_can_and_is_not_recorded_as_auto() -> None:
    """eager is the only one that returns float32 partials."""
    words = ("device=cpu", "kernel=auto")
    assert one_case(*words).kernel.name == "torch_flash"
    finer = one_case(*words, "precision.partial=float32")
    assert finer.kernel == one_case("device=cpu", "kernel=eager", "precision.partial=float32").kernel


def leaf_changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Every copy of a frozen dataclass in which exactly one field, however deep, is another."""
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if dataclasses.is_dataclass(content):
            others = [(f"{field.name}.{path}", other) for path, other in leaf_changes(content)]
        elif field.name == "observers":
            others = [(field.name, (Part("explain", "accuracy.explain.hypothesis.search"),))]
        elif isinstance(content, tuple):
            others = [(field.name, (*content, ("knob", 1)))]
        elif isinstance(content, str):
            others = [(field.name, content + "x")]
        elif content is None:
            others = [(field.name, 7)]
        else:
            others = [(field.name, content + 1)]
        yield from ((path, replace(value, **{field.name: other})) for path, other in others)


CASE = one_case("variant=bpt_ring", "path_b=ring@2")


def test_any_field_that_changes_numbers_changes_the_id() -> None:
    changes = list(leaf_changes(CASE))
    assert len({CASE.id, *(other.id for _, other in changes)}) == 1 + len(changes)


def test_a_schedule_for_equal_lengths_unsupporteds_others() -> None:
    plans = planned("variant=[single_device,ring,llama3]", "world_size=1", "problem.seqlen_q=[null,8]")
    assert [(each.case.variant.name, each.case.problem.seqlen_q) for each in plans if each.unsupported] == [
        ("ring", 8), ("llama3", 8)
    ]  # fmt: skip
    assert "as many queries as keys: drop problem.seqlen_q=8" in str(plans[-1].unsupported)


def test_inputs_have_as_many_tokens_as_the_problem_says() -> None:
    (only,) = planned("variant=single_device", "world_size=1", "problem.seqlen_q=8")
    drawn = drawing.draw(only.case.inputs, only.case.problem, only.case.seed)
    assert {name: x.shape[1] for name, x in drawn.items()} == {"q": 8, "k": 64, "v": 64, "dout": 8}


def test_an_id_does_not_know_where_a_part_lies() -> None:
    here, there = (
        replace(
            CASE,
            kernel=replace(CASE.kernel, source=f"{folder}/kernel/mine.py"),
            inputs=replace(CASE.inputs, source=f"{folder}/inputs/mine.py"),
            variant=replace(CASE.variant, forward=replace(CASE.variant.forward, source=f"{folder}/variant/mine.py")),
        )
        for folder in ("/home/one", "/home/two")
    )
    assert here.id == there.id != CASE.id


def test_other_cases_beside_it_leave_a_case_its_numbers() -> None:
    metrics = [name for name in METRICS if name != "repeats_size"]  # which only reruns have
    alone = measure("variant=ring", "world_size=2", "dtype=float32", "seed=1", "conditions=true")
    grid = ("variant=[zigzag,ring]", "world_size=[1,2]", "dtype=[bfloat16,float32]", "seed=[0,1]")
    crowd = measure("conditions=true", *grid, "inputs=[outliers,gaussian]")
    among = crowd[crowd["case_id"].isin(alone["case_id"])]
    assert among[metrics].to_numpy().tobytes() == alone[metrics].to_numpy().tobytes()


def test_inputs_of_all_dtypes_are_roundings_of_the_same_numbers() -> None:
    drawn = {}
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        case = one_case(f"dtype={dtype}")
        drawn[dtype] = drawing.round_to(drawing.draw(case.inputs, case.problem, case.seed), dtype, "cpu")
    for dtype, inputs in drawn.items():
        for rounded, exact in zip(inputs.tensors, drawn["float64"].tensors, strict=True):
            assert torch.equal(rounded, round_to(exact, getattr(torch, dtype)))


def test_inputs_are_named_by_problem_seed_distribution_and_tensor_alone() -> None:
    def drawn(*words: str) -> dict[str, torch.Tensor]:
        case = one_case(*words)
        return drawing.draw(case.inputs, case.problem, case.seed)

    base = drawn()
    assert not torch.equal(base["k"], base["v"])
    assert not torch.equal(base["q"], base["dout"])
    for same in ("variant=zigzag", "world_size=4", "kernel=eager", "precision.merge=double", "problem.mask=full"):
        assert all(torch.equal(x, base[name]) for name, x in drawn(same).items()), same
    for other in ("seed=1", "inputs=outliers", "inputs.gaussian.std=2", "problem.batch=2"):
        assert not any(torch.equal(x, base[name]) for name, x in drawn(other).items()), other
