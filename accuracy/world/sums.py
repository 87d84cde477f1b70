"""In which order do the ranks of one GPU add? All ranks' tensors in, their sum out; each addition rounds.

As in NCCL's ring algorithm: part j of what is summed (of a reduce-scatter the slice of rank j, of an all-reduce the
j-th of W equal parts) is rank j + 1's, plus rank j + 2's, ..., plus rank j's own.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

OPERATIONS: dict[str, Any] = {"SUM": torch.add, "AVG": torch.add, "MIN": torch.minimum, "MAX": torch.maximum}

Join = Callable[[Tensor, Tensor], Tensor]


def total(parts: Sequence[Tensor], owner: int, operation: str) -> Tensor:
    """Return what a reduction makes of all ranks' tensors, which are in rank order.

    Args:
        parts: of W ranks, of one shape and dtype.
        owner: the rank that the result belongs to.
        operation: as `torch.distributed.ReduceOp` names it. AVG multiplies by 1 / W before it adds, as NCCL does.
    """
    if operation == "AVG":
        parts = [part * (1 / len(parts)) if part.is_floating_point() else part for part in parts]
    result = _around(parts, owner, OPERATIONS[operation])
    return result // len(parts) if operation == "AVG" and not result.is_floating_point() else result


def _around(parts: Sequence[Tensor], owner: int, add: Join) -> Tensor:
    return reduce(add, [*parts[owner + 1 :], *parts[: owner + 1]])


def operation_of(opts: Any) -> str:
    """The name of a reduction. Raises ValueError for one that is not here."""
    found = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    name = next((name for name in OPERATIONS if found == getattr(dist.ReduceOp, name)), None)
    if name is None:
        raise ValueError(f"ranks that share a GPU have no reduction {found}; use one of {', '.join(OPERATIONS)}")
    return name
