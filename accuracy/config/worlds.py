"""Where do the ranks of a configuration live? Functions that talk over torch.distributed bring their world themselves.

In: a composed configuration with a simulated world. Out: the same, its functions (users' and packages') in a world of
processes, without the traces that only a simulated world has, and further grids on few ranks; the other variants stay
simulated, in grids of their own.
"""

from collections.abc import Mapping
from typing import Any

from accuracy.config.checks import values_of
from accuracy.config.compose import nodes
from accuracy.config.find import is_shorthand
from accuracy.config.hold import EVERYWHERE
from accuracy.config.paths import needs_processes

FEW = 4
"""Ranks that a further grid may start as processes where the main grid has several; more only as the main grid has."""
OF_FUNCTIONS = [1, 2, 3, 4]
"""At so many ranks `diagnose` and `assert_accurate` measure a function for which nobody chose a number of ranks."""


def settle(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration for which nobody chose a world with its functions in a world of processes."""
    if needs_processes(config.get("path_a")) and "simulated" in (config.get("world") or {}):
        return {**config, "world": nodes("world", ["processes"]), "workers": 1}
    variants = config.get("variant")
    if not isinstance(variants, Mapping) or "simulated" not in (config.get("world") or {}):
        return dict(config)
    functions = {name: node for name, node in variants.items() if _is_function(node)}
    if not functions:
        return dict(config)
    words = {name: node for name, node in variants.items() if is_shorthand(node)}
    others = {name: node for name, node in variants.items() if name not in {*functions, *words}}
    grids = dict(config.get("also") or {})
    sizes = config.get("world_size", 1)
    if config.get("given_keys") == EVERYWHERE and "world_size" not in config.get("given", ()):
        sizes = OF_FUNCTIONS
    most = _most(sizes)
    also = {name: _untraced(grid) for name, each in grids.items() if (grid := _affordable(each, most)) is not None}
    if others:
        changes = {"variant": others, "world": config["world"], "world_size": config.get("world_size", 1)}
        also |= {"simulated": changes}
        also |= {f"simulated_{name}": _of_others(grid, changes) for name, grid in grids.items()}
    world = {
        "world": nodes("world", ["processes"]), "variant": {**words, **functions}, "also": also, "world_size": sizes,
    }  # fmt: skip
    return {**config, **world, "workers": 1}


def _of_others(grid: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a further grid for the variants that stay simulated, at its own numbers of ranks if it has any."""
    return {**grid, **changes, "world_size": grid.get("world_size", changes["world_size"])}


def _is_function(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("forward") == "callable"


def _most(given: Any) -> int:
    return max((size for size in values_of(given) if isinstance(size, int)), default=1)


def _affordable(grid: Any, most: int) -> Any:
    """A further grid with its own world sizes as far as functions get them; None where none is left. A main grid of one
    rank says that a function is made for one, which is then called again and again there."""
    if not isinstance(grid, Mapping) or "world_size" not in grid:
        return grid
    if most == 1:
        return {**grid, "world_size": 1} if (grid.get("reruns") or {}).get("repeat") else None
    kept = [size for size in values_of(grid["world_size"]) if not isinstance(size, int) or size <= max(most, FEW)]
    return {**grid, "world_size": kept} if kept else None


def _untraced(grid: Any) -> Any:
    """A further grid for functions, whose steps cannot be watched."""
    if not isinstance(grid, Mapping) or not isinstance(grid.get("reruns"), Mapping):
        return grid
    return {**grid, "reruns": {**grid["reruns"], "trace": False}}
