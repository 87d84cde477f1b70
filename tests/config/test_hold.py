"""What a user gave holds in every grid of experiment=diagnose, and in the main grid alone elsewhere."""

from typing import Any

import pytest

from accuracy.config.compose import compose
from accuracy.config.read import read
from accuracy.config.settle import held

FULL = ("experiment=diagnose", "variant=ring")


def grids(*words: str, experiment: tuple[str, ...] = FULL) -> dict[str, Any]:
    found = held(compose(*experiment, *words), {word.partition("=")[0] for word in words})
    configuration = read(found)
    return {"main": configuration, **{str(number): each for number, each in enumerate(configuration.also)}}


@pytest.mark.parametrize(
    ("word", "where", "value"),
    [
        ("problem.mask=full", lambda each: {problem.mask for problem in each.problems}, {"full"}),
        ("problem.head_dim=40", lambda each: {problem.head_dim for problem in each.problems}, {40}),
        ("problem.seqlen=96", lambda each: {problem.seqlen for problem in each.problems}, {96}),
        ("problem.heads_kv=8", lambda each: {problem.heads for problem in each.problems}, {8}),
        ("dtype=[bfloat16,float16]", lambda each: set(each.dtypes), {"bfloat16", "float16"}),
        ("world_size=2", lambda each: set(each.world_sizes), {2}),
        ("seed=5", lambda each: set(each.seeds), {5}),
    ],
)
def test_a_key_that_is_given_holds_in_every_grid(word: str, where: Any, value: set[Any]) -> None:
    found = grids(word)
    assert len(found) > 15
    assert [where(each) for each in found.values()] == [value] * len(found)


def test_documents_and_queries_follow_the_length_that_is_given() -> None:
    problems = {problem for each in grids("problem.seqlen=96").values() for problem in each.problems}
    assert (10, 58, 28) in {each.documents for each in problems}
    assert 64 in {each.queries for each in problems}


def test_a_sharding_by_lengths_gives_length_and_ranks() -> None:
    node = {"forward": "ring", "backward": "ring", "sharding": "40+20"}
    config = held(compose("experiment=diagnose") | {"variant": {"mine": node}}, {"variant.sharding"})
    assert (config["problem"]["seqlen"], config["world_size"]) == (60, 2)
    assert all("world_size" not in grid and "seqlen" not in grid.get("problem", {}) for grid in config["also"].values())


def test_runs_again_of_a_long_problem_are_few() -> None:
    assert {each.reruns.repeat for each in grids("problem.seqlen=8192").values()} == {0, 2}
    assert 230 in {each.reruns.repeat for each in grids().values()}


def test_elsewhere_a_further_grid_is_what_its_author_wrote() -> None:
    found = grids("dtype=float64", experiment=("experiment=inputs_that_matter",))
    assert set(found["main"].dtypes) == {"float64"}
    given = held(compose("experiment=remedies", "seed=3"), {"seed"})
    assert given["also"] == compose("experiment=remedies")["also"]
