"""Where do the ranks of a configuration live? Functions that talk over torch.distributed bring their world themselves.

In: a composed configuration with a simulated world. Out: the same, its functions (users' and packages') in a world of
processes, without the traces that only a simulated world has, and without grids that have world sizes of their own; the
other variants stay simulated, in grids of their own.
"""

from collections.abc import Mapping
from typing import Any

from accuracy.config.compose import nodes
from accuracy.config.find import is_shorthand


def settle(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that nobody chose a world for."""
    variants = config.get("variant")
    if not isinstance(variants, Mapping) or "simulated" not in (config.get("world") or {}):
        return dict(config)
    functions = {name: node for name, node in variants.items() if _is_function(node)}
    if not functions:
        return dict(config)
    words = {name: node for name, node in variants.items() if is_shorthand(node)}
    others = {name: node for name, node in variants.items() if name not in {*functions, *words}}
    grids = dict(config.get("also") or {})
    also = {name: _untraced(grid) for name, grid in grids.items() if not _has_sizes(grid)}
    if others:
        changes = {"variant": others, "world": config["world"]}
        also |= {"simulated": changes, **{f"simulated_{name}": {**grid, **changes} for name, grid in grids.items()}}
    world = {"world": nodes("world", ["processes"]), "variant": {**words, **functions}, "also": also}
    return {**config, **world, "workers": 1}


def _is_function(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("forward") == "callable"


def _has_sizes(grid: Any) -> bool:
    """Whether a further grid has world sizes of its own, which would be as many processes."""
    return isinstance(grid, Mapping) and "world_size" in grid


def _untraced(grid: Any) -> Any:
    """A further grid for functions, whose steps cannot be watched."""
    if not isinstance(grid, Mapping) or not isinstance(grid.get("reruns"), Mapping):
        return grid
    return {**grid, "reruns": {**grid["reruns"], "trace": False}}
