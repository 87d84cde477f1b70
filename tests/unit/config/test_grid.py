"""The cases of a configuration: every list is an axis; what a user gave holds in every grid of experiment=diagnose, and
elsewhere in the main one; the grids of a function."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from accuracy.config.read import read
from accuracy.config.resolve import keys_of, resolved
from accuracy.core.case import Case, Problem
from accuracy.core.sharding import parts_of, unsupported
from accuracy.execute import shapes
from accuracy.execute.plan import Planned, plan
from accuracy.inputs import drawing
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.observe import shared
from accuracy.runtime.rounding import round_to
from tests.measuring import case_of, composed, configuration

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
        "dtype=[float,double]", "world_size=[1,2]", "seed=[0,1]", "problem.mask=[causal,full]",
    )  # fmt: skip
    assert len(plans) == 3 * 3 * 3 * 2 * 2 * 2 * 2
    assert all(each.unsupported is None for each in plans)
    assert {each.case.dtype for each in plans} == {"float32", "float64"}
    assert set(configuration("dtype=[bf16,half]").dtypes) == {"bfloat16", "float16"}  # as others call them


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
        published, changed = (one_case(f"variant={variant}", *words) for words in ((), (f"precision.{knob}",)))
        assert (changed.id == published.id, changed.precision_text) == (not text, text)


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


def test_a_value_that_nothing_can_use_is_recorded_where_that_is_asked_for() -> None:
    """An experiment names kernels that a machine may lack."""
    words = ("device=cpu", "variant=single_device", "world_size=1", "kernel=[eager,flash_attn]", "unusable=record")
    reasons = {each.case.kernel.name: each.unsupported for each in planned(*words)}
    assert reasons["eager"] is None
    assert str(reasons["flash_attn"]).startswith("kernel flash_attn needs a CUDA device")


def test_auto_is_the_first_kernel_that_can_and_is_not_recorded_as_auto() -> None:
    """eager is the only one that returns float32 partials."""
    assert one_case("device=cpu", "kernel=auto").kernel.name == "torch_flash"
    finer, eager = (one_case("device=cpu", f"kernel={name}", "precision.partial=float32") for name in ("auto", "eager"))
    assert finer.kernel == eager.kernel


def test_the_id_does_not_know_where_a_part_lies() -> None:
    """That it knows every field is in tests/unit/core/test_fields.py."""
    case = one_case("variant=bpt_ring", "path_b=ring@2")
    ids = []
    for folder in ("/home/one", "/home/two"):
        kernel, inputs, forward = (
            replace(part, source=f"{folder}/mine.py") for part in (case.kernel, case.inputs, case.variant.forward)
        )
        moved = replace(case, kernel=kernel, inputs=inputs, variant=replace(case.variant, forward=forward))
        ids.append(moved.id)
    assert ids[0] == ids[1] != case.id


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


DIAGNOSE = ("experiment=diagnose", "variant=ring")


def grids(*words: str, experiment: tuple[str, ...] = DIAGNOSE) -> list[Any]:
    configuration = read(resolved(composed(*experiment, *words), keys_of(words)))
    return [configuration, *configuration.also]


def test_a_key_that_is_given_holds_in_every_grid() -> None:
    for word, where, value in (
        ("problem.mask=full", lambda each: {problem.mask for problem in each.problems}, {"full"}),
        ("problem.head_dim=40", lambda each: {problem.head_dim for problem in each.problems}, {40}),
        ("problem.seqlen=96", lambda each: {problem.seqlen for problem in each.problems}, {96}),
        ("problem.heads_kv=8", lambda each: {problem.heads for problem in each.problems}, {8}),
        ("dtype=[bfloat16,float16]", lambda each: set(each.dtypes), {"bfloat16", "float16"}),
        ("world_size=2", lambda each: set(each.world_sizes), {2}),
        ("seed=5", lambda each: set(each.seeds), {5}),
    ):
        found = grids(word)
        assert len(found) > 15
        assert [where(each) for each in found] == [value] * len(found), word


def test_documents_queries_and_runs_again_follow_the_length_that_is_given() -> None:
    problems = {problem for each in grids("problem.seqlen=96") for problem in each.problems}
    assert (12, 54, 30) in {each.documents for each in problems}
    assert 64 in {each.queries for each in problems}
    repeats = [{dict(each.options).get("repeat", 0) for grid in grids(*words) for each in grid.observers}
               for words in (("problem.seqlen=8192",), (), ("world_size=1",), ("world_size=[2,8]",))]  # fmt: skip
    assert repeats == [{0, 1}, {0, 1, 230}, {0, 1, 230}, {0, 1, 58}]
    node = {"forward": "ring", "backward": "ring", "sharding": "40+20"}
    config = resolved(composed("experiment=diagnose") | {"variant": {"mine": node}}, {"variant.sharding"})
    assert (config["problem"]["seqlen"], config["world_size"]) == (60, 2)
    assert all("world_size" not in grid and "seqlen" not in grid.get("problem", {}) for grid in config["also"].values())


def test_elsewhere_a_further_grid_is_what_its_author_wrote() -> None:
    main, *_ = grids("dtype=float64", experiment=("experiment=inputs_that_matter",))
    assert set(main.dtypes) == {"float64"}
    composition = composed("experiment=remedies", "seed=3")
    assert resolved(composition, {"seed"})["also"] == composition["also"]


def test_a_function_is_measured_on_one_to_four_ranks_unless_told_and_variants_beside_it_keep_all_grids() -> None:
    def sizes(*words: str) -> tuple[Any, dict[str, Any]]:
        """The main grid's numbers of ranks, and those of the further grids that have their own."""
        function = ("experiment=diagnose", "variant=callable", "variant.fn=my_package.my_attention")
        config = resolved(composed(*function, *words), keys_of(words))
        return config["world_size"], {
            k: grid["world_size"] for k, grid in config["also"].items() if "world_size" in grid
        }

    alone = {"shape_short": [1], "shape_many_heads": [1]}
    one_or_two = {key: [1, 2] for key in ("shape_scale", "shape_shifted")}
    several = {"shape_lengths": [2, 4], "ranks": [3, 4]}
    assert sizes() == ([1, 2, 3, 4], {"repeats": [1, 2], **alone, **one_or_two, **several})
    assert sizes("world_size=[1,16]") == ([1, 16], {})
    _, both = sizes("variant=[ring,callable]")
    assert (both["simulated_many_ranks"], both["simulated_ranks"]) == (32, [3, 4, 5, 16])


def test_what_a_diagnosis_may_name_as_a_condition_has_a_neighbour_that_differs_in_nothing_else() -> None:
    """Measured in a dtype and on inputs of its own: else two sequences of 16 tokens are told from one of 528."""
    fn = "variant.callable.fn=tests.slow.foreign.functions:eager"
    every = grids("world_size=1", experiment=("experiment=diagnose", "variant=callable", fn))
    measured: dict[Problem, set[tuple[str, str]]] = {}
    for grid in every:
        for problem in grid.problems:
            asked = {(dtype, inputs.name) for dtype in grid.dtypes for inputs in grid.inputs}
            measured.setdefault(problem, set()).update(asked)
    apart = set()
    for one, another in itertools.combinations(measured, 2):
        differ = {name for name, value in vars(one).items() if value != vars(another)[name]}
        if differ == {"heads", "heads_kv"} and one.heads == one.heads_kv and another.heads == another.heads_kv:
            differ = {"heads"}
        if len(differ) == 1 and measured[one] & measured[another]:
            apart |= differ
    assert apart >= {"batch", "seqlen", "heads", "heads_kv", "head_dim", "mask", "window", "documents", "softcap"}
