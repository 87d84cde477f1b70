"""Which further grids a function gets, whose ranks are processes."""

from typing import Any

import pytest

from accuracy.config.compose import compose
from accuracy.config.worlds import settle

FUNCTION = ("experiment=diagnose", "variant=callable", "variant.fn=my_package.my_attention")


def sizes(*words: str) -> dict[str, Any]:
    grids = settle(compose(*FUNCTION, *words))["also"]
    return {name: grid["world_size"] for name, grid in grids.items() if "world_size" in grid}


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [
        ("1", {"repeats": 1}),
        ("[1,2]", {"repeats": [2], "ranks": [3, 4, 5]}),
        ("[1,16]", {"repeats": [2], "ranks": [3, 4, 5, 16]}),
        ("[1,32]", {"repeats": [2], "ranks": [3, 4, 5, 16], "many_ranks": [32]}),
    ],
)
def test_many_processes_start_only_where_the_main_grid_has_as_many(world_size: str, expected: dict[str, Any]) -> None:
    assert sizes(f"world_size={world_size}") == expected


def test_variants_beside_a_function_keep_all_grids() -> None:
    simulated = sizes("variant=[ring,callable]", "world_size=[1,2]")
    assert simulated["simulated_many_ranks"] == 32
    assert simulated["simulated_ranks"] == [3, 4, 5, 16]
