"""Which further grids a function gets, whose ranks are processes."""

from typing import Any

from accuracy.config.compose import compose
from accuracy.config.settle import settled as in_force

FUNCTION = ("experiment=diagnose", "variant=callable", "variant.fn=my_package.my_attention")


def settled(*words: str) -> dict[str, Any]:
    return in_force(compose(*FUNCTION, *words), {word.partition("=")[0] for word in words})


def sizes(*words: str) -> dict[str, Any]:
    return {name: grid["world_size"] for name, grid in settled(*words)["also"].items() if "world_size" in grid}


def test_a_function_is_measured_on_one_to_four_ranks_unless_told() -> None:
    assert settled()["world_size"] == [1, 2, 3, 4]
    assert sizes() == {"repeats": [2], "ranks": [3, 4]}


def test_numbers_of_ranks_that_are_given_hold_in_every_grid() -> None:
    assert settled("world_size=[1,16]")["world_size"] == [1, 16]
    assert sizes("world_size=[1,16]") == {}


def test_variants_beside_a_function_keep_all_grids() -> None:
    simulated = sizes("variant=[ring,callable]")
    assert simulated["simulated_many_ranks"] == 32
    assert simulated["simulated_ranks"] == [3, 4, 5, 16]
