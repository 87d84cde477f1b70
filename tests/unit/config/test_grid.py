import itertools
from dataclasses import replace

import pytest
import torch

from accuracy.config import find
from accuracy.core.case import Case, Problem
from accuracy.core.sharding import parts_of, unsupported
from accuracy.execute import shapes
from accuracy.execute.plan import Planned, plan
from accuracy.inputs import drawing
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.observe import shared
from accuracy.runtime.rounding import round_to
from tests.measuring import case_of, configuration, refused

SMALL = ("problem.seqlen=64", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8")


def planned(*words: str, free_bytes: int | None = None) -> list[Planned]:
    return plan(configuration(*SMALL, *words), free_bytes)


def one_case(*words: str) -> Case:
    return case_of(*SMALL, "variant=ring", "world_size=2", *words)


def drawn(*words: str) -> dict[str, torch.Tensor]:
    case = one_case(*words)
    return drawing.draw(case.inputs, case.problem, case.seed)


def test_every_list_is_an_axis() -> None:
    plans = planned(
        "variant=[ring,bpt_ring]", "variant.bpt_ring.query_chunk=[8,16]", "kernel=[eager,torch_flash]",
        "kernel.eager.probability_dtype=[input,float32]", "inputs=[gaussian,outliers]", "inputs.outliers.scale=[5,10]",
        "dtype=[float32,float64]", "world_size=[1,2]", "seed=[0,1]", "problem.mask=[causal,full]",
    )  # fmt: skip
    assert len(plans) == 3 * 3 * 3 * 2 * 2 * 2 * 2
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
        (published,), (changed,) = (planned(f"variant={variant}", "world_size=2", *words) for words in
                                    ((), (f"precision.{knob}",)))  # fmt: skip
        assert (changed.case.id == published.case.id, changed.case.precision_text) == (not text, text)


def test_unsupported_cases_stay_in_the_plan_with_their_reason() -> None:
    words = ("variant=ring", "world_size=2", "problem.seqlen=[64,65536]", "problem.batch=[1,64]")
    needed = sorted(bytes_needed(each.case) for each in planned(*words))
    for plans, cases, reason in (
        (planned("variant=[single_device,ring]", "world_size=[1,2]"), 4, "use world_size=1, not 2"),
        (planned("variant=[single_device,ring]", "world_size=1", "problem.seqlen_q=[null,8]"), 4, "problem.seqlen_q=8"),
        (planned(*words, free_bytes=needed[-2]), 4, f"{needed[-1] / 2**30:.1f} GiB of"),
    ):  # fmt: skip
        (unsupported,) = (each for each in plans if each.unsupported)
        assert len(plans) == cases
        assert reason in str(unsupported.unsupported)


def test_a_value_that_nothing_can_use_stops_the_run() -> None:
    for words, told in (
        (["variant=[ring,single_device]", "world_size=[2,4]"], "variant=single_device: single_device runs on one"),
        (["kernel=[torch_flash,flash_attn]"], "kernel=flash_attn: kernel flash_attn needs a CUDA device"),
        (["kernel=flash_attn", "unusable=record"], "kernel flash_attn needs a CUDA device"),
        (
            ["kernel=[flash_attn,torch_efficient]", "unusable=record"],
            "kernel flash_attn needs a CUDA device",
        ),
    ):
        assert told in refused(*SMALL, "device=cpu", *words)


def test_a_value_that_nothing_can_use_is_recorded_where_that_is_asked_for() -> None:
    """An experiment names kernels that a machine may lack; the user's own kernel=every names none at all."""
    words = ("device=cpu", "variant=single_device", "world_size=1")
    for more in (("kernel=[eager,flash_attn]", "unusable=record"), ("kernel=every",)):
        reasons = {each.case.kernel.name: each.unsupported for each in planned(*words, *more)}
        assert reasons["eager"] is None
        assert str(reasons["flash_attn"]).startswith("kernel flash_attn needs a CUDA device")
    assert set(reasons) == set(find.sources("kernel"))
    fewer = planned(*words, "kernel=every", "kernel.every.exclude=[eager,torch_math]")
    assert set(reasons) - {each.case.kernel.name for each in fewer} == {"eager", "torch_math"}


def test_auto_is_the_first_kernel_that_can_and_is_not_recorded_as_auto() -> None:
    """eager is the only one that returns float32 partials."""
    assert one_case("device=cpu", "kernel=auto").kernel.name == "torch_flash"
    finer, eager = (one_case("device=cpu", f"kernel={name}", "precision.partial=float32") for name in ("auto", "eager"))
    assert finer.kernel == eager.kernel


def test_the_id_does_not_know_where_a_part_lies() -> None:
    """That it knows every field is in tests/unit/core/test_fields.py."""
    case = one_case("variant=bpt_ring", "path_b=ring@2")
    here, there = (
        replace(
            case,
            kernel=replace(case.kernel, source=f"{folder}/kernel/mine.py"),
            inputs=replace(case.inputs, source=f"{folder}/inputs/mine.py"),
            variant=replace(case.variant, forward=replace(case.variant.forward, source=f"{folder}/variant/mine.py")),
        )
        for folder in ("/home/one", "/home/two")
    )
    assert here.id == there.id != case.id


def test_dtypes_have_the_names_that_others_give_them() -> None:
    assert set(configuration("dtype=[bf16,half,float,double]").dtypes) == {"bfloat16", "float16", "float32", "float64"}


def test_inputs_are_named_by_problem_seed_distribution_and_tensor_and_all_dtypes_are_their_roundings() -> None:
    base = drawn()
    assert not torch.equal(base["k"], base["v"])
    assert not torch.equal(base["q"], base["dout"])
    for same in ("variant=zigzag", "world_size=4", "kernel=eager", "precision.merge=double", "problem.mask=full"):
        assert all(torch.equal(x, base[name]) for name, x in drawn(same).items()), same
    for other in ("seed=1", "inputs=outliers", "inputs.gaussian.std=2", "problem.batch=2"):
        assert not any(torch.equal(x, base[name]) for name, x in drawn(other).items()), other
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        for rounded, exact in zip(drawing.round_to(base, dtype, "cpu").tensors, base.values(), strict=True):
            assert torch.equal(rounded, round_to(exact, getattr(torch, dtype)))
    fewer = case_of(*SMALL, "variant=single_device", "world_size=1", "problem.seqlen_q=8")
    few = drawing.draw(fewer.inputs, fewer.problem, fewer.seed)
    assert {name: x.shape[1] for name, x in few.items()} == {"q": 8, "k": 64, "v": 64, "dout": 8}


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_questions_about_shapes_have_lengths_that_the_ranks_can_share(sharding: str, ranks: int) -> None:
    """A function that is diagnosed at 8 ranks alone is asked about no length that 8 ranks cannot cut."""
    parts = parts_of(sharding, ranks)
    base = Problem(1, 128 * parts, 2, 2, 64, "causal", 0.125)
    asked = shapes.questions(base, set(), parts)
    assert {f"seqlen={length}" for length in shapes.LENGTHS.values()} - {*asked} == {"seqlen=128"}
    lengths = {each.seqlen for each in (*shapes.hardest(base, set(), parts), *asked.values())}
    assert not [length for length in lengths if unsupported(sharding, length, ranks)]
