"""Does a function that is told of no process group talk to the other ranks at all?"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from accuracy.core.errors import NotShared
from accuracy.runtime.arguments import takes

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Of torch's operators that talk to other ranks."""

_talks: dict[int, Callable[..., Any]] = {}
"""By id, as a callable object may have no hash; held, so that no other gets its id."""


class _Collectives(TorchDispatchMode):
    """Sees every operator of a stretch of code. seen: one that talks to other ranks was among them."""

    supports_higher_order_operators = True
    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func.namespace in NAMESPACES
        return func(*args, **(kwargs or {}))


def require_talk(fn: Callable[..., Any], group: dist.ProcessGroup | None, call: Callable[[], object]) -> None:
    """Raises NotShared where fn has no parameter `group`, several ranks are to share its work, and `call`, which calls
    it, uses none of torch.distributed's operators: it is a function of one device. Asked once for a function."""
    if group is None or group.size() == 1 or id(fn) in _talks or takes(fn, "group"):
        return
    with _Collectives() as collectives:
        call()
    if not collectives.seen:
        raise NotShared(
            "the function has no parameter group and calls nothing of torch.distributed, so ranks cannot share its"
            " work: use world_size=1, or give it a group"
        )
    _talks[id(fn)] = fn
