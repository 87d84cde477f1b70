"""One call of attention while a model runs: what it took, what it returned, and later its gradients.

q, k and v are handed on as aliases, so that the gradients seen are those of this call alone. Where torch itself shards
the sequence, as DTensors or in `context_parallel`, this rank's own part is meant.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accuracy.core.recording import Facts
from accuracy.live.functions import Function
from accuracy.live.writing import Copied
from accuracy.runtime.layout import canonical, lse_in, unpacked

SEQUENCE = {"bshd": 1, "bhsd": 2, "sbhd": 0}  # dimension of a layout
CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"


class Record:
    """Tensors of one call, handed to `done` when all gradients are there, or by `close`."""

    def __init__(self, facts: Facts, tensors: dict[str, Tensor], done: Callable[[Facts, dict[str, Copied]], None]):
        self.facts, self._done = facts, done
        self._tensors = {name: Copied(x) for name, x in tensors.items()}
        self.expected: set[str] = set()  # gradients that are waited for; none where autograd does not watch
        self._closed = False

    def returned(self, out: Tensor, lse: Tensor | None) -> None:
        """What the function returned, canonical."""
        self._tensors["out"] = Copied(out)
        if lse is not None:
            self._tensors["lse"] = Copied(lse)

    def watch(self, function: Function, given: dict[str, Tensor], out: Tensor) -> None:
        """Take the gradients of this call's arguments, and of its out, when backward brings them."""
        watched: list[tuple[tuple[str, ...], Tensor, str]] = [
            (("dout",), out, function.out_layout or function.layout),
            *((_gradients(name, place), x, function.layout) for place, (name, x) in enumerate(given.items())),
        ]
        for names, x, layout in watched if out.requires_grad else ():
            if x.requires_grad:
                self.expected |= {*names}
                x.register_hook(partial(self._add, layout, names, gradient_like(x)))

    def close(self) -> None:
        """Hand over what there is; gradients that come later are not waited for."""
        if not self._closed:
            self._closed = True
            self._done(self.facts, self._tensors)

    def _add(self, layout: str, names: Sequence[str], own: Callable[[Tensor], Tensor], gradient: Tensor) -> None:
        part = own(gradient)
        for name, x in zip(names, part.unbind(-3) if len(names) > 1 else (part,), strict=True):
            if not self._closed and name not in self._tensors:
                self._tensors[name] = Copied(_like_heads(canonical(x, layout), self.facts))
        if self.expected <= {*self._tensors}:
            self.close()


def _gradients(name: str, place: int) -> tuple[str, ...]:
    """The gradients of an argument, of which packed ones hold several of q, k and v."""
    return tuple(f"d{letter}" for letter in (name if name in ("qkv", "kv") else "qkv"[place]))


def _like_heads(x: Tensor, facts: Facts) -> Tensor:
    """(B, S, H, D), also of an out that came as (B, S, H D)."""
    return x.unflatten(-1, (facts.shapes["q"][2], -1)) if x.dim() == 3 else x


def output(function: Function, result: Any, q: Tensor, facts: Facts) -> tuple[Tensor, Tensor | None, Tensor]:
    """out as returned, out canonical, lse canonical or None. Raises TypeError where there is no out."""
    parts = tuple(result) if isinstance(result, tuple | list) else (result,)
    own = [local(x) for x in parts]
    if not parts or not isinstance(parts[0], Tensor):
        raise TypeError(f"it returned {type(result).__name__}, no tensor")
    out = _like_heads(canonical(own[0], function.out_layout or function.layout), facts)
    if out.shape[:3] != q.shape[:3]:
        raise TypeError(f"out is {tuple(parts[0].shape)}, which is not {function.out_layout or function.layout}")
    return parts[0], lse_in(own[1:], q), out


def facts_of(
    function: Function, arguments: dict[str, Any], given: dict[str, Tensor]
) -> tuple[Facts, dict[str, Tensor]]:
    """What the call's arguments say, still without a place in the model; and its tensors, canonical."""
    tensors = unpacked(given, function.layout)
    q, k, v = tensors.values()
    if k.shape[:3] != v.shape[:3] or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or q.shape[2] % k.shape[2]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())
        raise TypeError(f"{shapes} as {function.layout} is no attention; say layout=")
    settings, mask = function.settings(arguments, q, k)
    settings |= _documents(settings, q.shape[1], k.shape[1])
    if mask is not None:
        kind = "added" if mask.is_floating_point() else "seen"
        mask = mask if kind == "added" else mask.bool()
        for dim in (0, 1):  # without the copies that broadcasting made
            mask = mask.narrow(dim, 0, 1) if mask.shape[dim] > 1 and mask.stride(dim) == 0 else mask
        settings["mask"], tensors["mask"] = kind, mask
        every = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
        if mask.dim() != 4 or any(one not in (1, most) for one, most in zip(mask.shape, every, strict=True)):
            misfit = f"a mask {tuple(mask.shape)} does not fit {every} of q and k as {function.layout}; say layout="
            settings["note"] = settings.get("note") or misfit
    device = q.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    facts = Facts(
        layer="", step=0, rank=0, ranks=(0,), function=function.path, layout=function.layout,
        dtype=str(q.dtype).removeprefix("torch."), device=device, torch=torch.__version__,
        shapes={name: tuple(x.shape) for name, x in tensors.items()},
        autocast=str(autocast).removeprefix("torch.") if autocast else "",
        tf32=device == "cuda" and torch.backends.cuda.matmul.allow_tf32, scale=settings.pop("scale"),
        words=tuple(name for name in arguments if name not in function.tensors),
    )  # fmt: skip
    return replace(facts, **settings), tensors


def _documents(settings: dict[str, Any], queries: int, keys: int) -> dict[str, Any]:
    """The lengths without documents that hold nothing; a note in their place where they are not all of the tokens."""
    lengths, of_keys = settings.get("documents", ()), settings.get("documents_k", ())
    if not lengths and not of_keys:
        return {}
    kept = [pair for pair in zip(lengths, of_keys or lengths, strict=False) if any(pair)]
    given, given_k = (tuple(each) for each in zip(*kept, strict=True)) if kept else ((), ())
    if not all(given + given_k) or min(given + given_k) < 0 or (sum(given), sum(given_k)) != (queries, keys):
        note = (
            f"documents of {sum(lengths)} tokens are not understood where {queries} queries and {keys} keys are given"
        )
        return {"documents": (), "documents_k": (), "note": settings.get("note") or note}
    return {"documents": given, "documents_k": given_k if given_k != given else ()}


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


def shard_of(x: Tensor, layout: str, function: Callable[..., Any]) -> Shard | None:
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
    balanced = len(ranks) > 1 and getattr(options, "enable_load_balance", False)
    if balanced:  # and torch's context parallelism has put its handlers in place
        module: Any = sys.modules[CONTEXT_PARALLEL]
        balanced = {*module.custom_ops} <= {*module.DTensor._op_dispatcher._custom_op_handlers}
    return Shard(ranks, "zigzag" if balanced else "contiguous")


def _of_context_parallel(function: Callable[..., Any]) -> Any:
    """The mesh, where a function is what `context_parallel` has put in its place; None elsewhere."""
    replaced = getattr(sys.modules.get(CONTEXT_PARALLEL), "_replaced_functions", {})
    if function not in replaced:
        return None
    cells = function.__closure__ or ()
    held = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
    return held.get("device_mesh")
