"""What a user gave holds in every grid of experiment=diagnose, elsewhere in the main one; the grids of a function."""

import itertools
from typing import Any

from accuracy.config.read import read
from accuracy.config.resolve import keys_of, resolved
from accuracy.core.case import Problem
from tests.measuring import composed

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
