"""Does a function share its work with the other ranks? A ring does; attention on one device does not, whatever its
parameters are called."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode  # private: torch has no public way to see its operators

from accuracy.core import own_code
from accuracy.core.errors import NOT_SHARED, NotShared
from accuracy.runtime.arguments import names, parameters, takes_any_word

T = TypeVar("T")
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Of torch's operators that talk to other ranks."""
TALK = {
    "torch.distributed.distributed_c10d": {*distributed_c10d.__all__} - {"is_available", "is_initialized"},
    "torch.distributed._functional_collectives": {
        "all_gather_tensor", "all_gather_tensor_autograd", "all_reduce", "all_to_all_single", "broadcast",
        "all_to_all_single_autograd", "permute_tensor", "reduce_scatter_tensor", "reduce_scatter_tensor_autograd",
    },
}  # fmt: skip
"""By module of torch, its functions that ask for a rank, a size or a transfer."""
BINDINGS = "_distributed_c10d."
"""In the signature of what torch's process groups have: group.rank(), group.size()."""

_talks: dict[tuple[int, int], Callable[..., Any]] = {}
"""By id, as a callable object may have no hash, and number of ranks; held, so that no other gets its id."""
LATE_IMPORT = re.compile(r"^[ \t]+(from|import) ", re.MULTILINE)
_may_share: dict[int, tuple[Callable[..., Any], bool]] = {}


class _Collectives(TorchDispatchMode):
    """Sees every operator of a stretch of code. seen: one that talks to other ranks was among them."""

    supports_higher_order_operators = True
    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func.namespace in NAMESPACES
        return func(*args, **(kwargs or {}))


def may_share(fn: Callable[..., Any]) -> bool:
    """Return whether a function may be one of several ranks: it takes a group, or any word, or the code that it is made
    of names torch.distributed, in its user's files (of a whole package, where one of them imports late), in the package
    that it comes from, or in the script that runs."""
    if getattr(fn, "one_device", False) is True:  # as `accuracy.from_jax` marks its functions
        return False
    if names(fn, "group") or takes_any_word(parameters(fn) or {}):
        return True
    if id(fn) not in _may_share:
        texts = [path.read_text(errors="replace") for path in own_code.modules(fn).values()]
        if any(LATE_IMPORT.search(text) for text in texts):
            texts = [path.read_text(errors="replace") for path in own_code.files(fn)]
        _may_share[id(fn)] = fn, any("distributed" in text for text in texts) or _names_distributed(fn)
    return _may_share[id(fn)][1]


def _names_distributed(fn: Callable[..., Any]) -> bool:
    """Return whether the code of a function, or a module of its package, has a name of torch.distributed."""
    layers = own_code.layers(fn)
    spaces = [each.__globals__ for each in layers if isinstance(getattr(each, "__globals__", None), dict)]
    if any("distributed" in each.__code__.co_names for each in layers if hasattr(each, "__code__")):
        return True
    seen: set[str] = set()
    while spaces:
        space = spaces.pop()
        name = str(space.get("__name__", ""))
        package = name.partition(".")[0]
        if package in ("torch", "accuracy") or name in seen:
            continue
        seen.add(name)
        modules = {own_code.module_name(value) or "" for value in list(space.values())}
        if any(module.startswith("torch.distributed") for module in modules):
            return True
        own = (sys.modules.get(module) for module in modules if module.partition(".")[0] == package)
        spaces += [vars(module) for module in own if module is not None]
    return False


def watched(call: Callable[[], T]) -> tuple[T, bool]:
    """Return what `call` returns, and whether Python code under it asks torch.distributed for a rank, a size or a
    transfer."""
    found = False

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        if event == "call":
            found |= frame.f_code.co_name in TALK.get(frame.f_globals.get("__name__", ""), ())
        elif event == "c_call":
            found |= BINDINGS in (getattr(argument, "__doc__", None) or "")  # of group.rank() and the like

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        result = call()
    finally:
        sys.setprofile(before)
    return result, found


def _uses_operators(call: Callable[[], object]) -> bool:
    """Return whether `call` uses an operator that talks to other ranks, which code in C++ may do. What a compiled
    function does, which torch does not run under such a watch, is not seen."""
    with _Collectives() as collectives, suppress(RuntimeError):
        call()
    return collectives.seen


def shared(fn: Callable[..., Any], group: dist.ProcessGroup | None, call: Callable[[], T]) -> T:
    """Return what `call`, which calls fn, returns. Raises NotShared where several ranks are to share fn's work and it
    asks torch.distributed for nothing: it is a function of one device. Watched once for a function and a number of
    ranks, as all of these ranks have to call it alike."""
    if group is None or group.size() == 1 or (id(fn), group.size()) in _talks:
        return call()
    result, talks = watched(call)
    takes_group = names(fn, "group")
    if not talks and (takes_group or not _uses_operators(call)):
        has, advice = (
            ("takes a group and", "") if takes_group else ("has no parameter group and", ", or give it a group")
        )
        raise NotShared(
            f"the function {has} asks torch.distributed for nothing, {NOT_SHARED}: use world_size=1{advice}"
        )
    _talks[id(fn), group.size()] = fn
    return result
