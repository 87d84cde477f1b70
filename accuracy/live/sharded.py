"""Which part of a sequence does a rank have where torch itself shards it: as DTensors, or in `context_parallel`?"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

SEQUENCE = {"bshd": 1, "bhsd": 2, "sbhd": 0}  # dimension of a layout
CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"


class Shard(NamedTuple):
    """ranks: those that share a sequence, in its order; sharding: how they do."""

    ranks: tuple[int, ...]
    sharding: str


def local(x: Any) -> Any:
    """A DTensor's own part, waited for; anything else as it is."""
    return x.to_local() if hasattr(x, "to_local") else x


def gradient_like(x: Tensor) -> Callable[[Tensor], Tensor]:
    """What makes a gradient of x this rank's part of x. Of DTensors a collective, where they are placed otherwise."""
    placements = getattr(x, "placements", None)

    def own(gradient: Tensor) -> Tensor:
        if placements is not None and getattr(gradient, "placements", placements) != placements:
            gradient = gradient.redistribute(placements=placements)  # type: ignore[attr-defined]
        part: Tensor = local(gradient)
        return part

    return own


def of(x: Tensor, layout: str, function: Callable[..., Any]) -> Shard | None:
    """x: q as the call gave it. None: nothing here says that its sequence is shared. Raises TypeError where a DTensor
    is sharded in a way that no capture says."""
    mesh, placements = getattr(x, "device_mesh", None), getattr(x, "placements", ())
    if mesh is None:
        mesh = _of_context_parallel(function)
        return None if mesh is None else _over(mesh, 0)
    sharded = [number for number, each in enumerate(placements) if getattr(each, "dim", None) == SEQUENCE.get(layout)]
    if any(each.is_partial() for each in placements) or len(sharded) > 1:
        raise TypeError(f"a DTensor placed {placements} is not understood")
    return _over(mesh, sharded[0]) if sharded else None


def _over(mesh: Any, number: int) -> Shard:
    """Along one dimension of a mesh, through this rank."""
    place = list(mesh.get_coordinate())
    place[number] = slice(None)
    ranks = tuple(int(rank) for rank in mesh.mesh[tuple(place)].tolist())
    options = getattr(sys.modules.get(CONTEXT_PARALLEL), "_cp_options", None)
    balanced = len(ranks) > 1 and getattr(options, "enable_load_balance", False) and _enabled()
    return Shard(ranks, "zigzag" if balanced else "contiguous")


def _enabled() -> bool:
    """Whether torch's context parallelism has put its handlers in place."""
    module: Any = sys.modules[CONTEXT_PARALLEL]
    handlers = module.DTensor._op_dispatcher._custom_op_handlers
    return bool({*module.custom_ops} <= {*handlers})


def _of_context_parallel(function: Callable[..., Any]) -> Any:
    """The mesh, where a function is what `context_parallel` has put in its place; None elsewhere."""
    replaced = getattr(sys.modules.get(CONTEXT_PARALLEL), "_replaced_functions", {})
    if function not in replaced:
        return None
    cells = function.__closure__ or ()
    held = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
    return held.get("device_mesh")
