"""In which order do the ranks of one GPU add? All ranks' tensors in, their sum out; each addition rounds.

- ring: as NCCL's ring algorithm. Part j of what is summed (of a reduce-scatter the slice of rank j, of an all-reduce
  the j-th of W equal parts) is rank j + 1's, plus rank j + 2's, ..., plus rank j's own.
- tree: neighbours in pairs, then the pairs' sums in pairs, ...: (r0 + r1) + (r2 + r3) of four ranks.
- rank_order: ((r0 + r1) + r2) + r3.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OPERATIONS: dict[str, Any] = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip

Join = Callable[[Tensor, Tensor], Tensor]


def _ring(parts: Sequence[Tensor], owner: int, add: Join) -> Tensor:
    return reduce(add, [*parts[owner + 1 :], *parts[: owner + 1]])


def _rank_order(parts: Sequence[Tensor], owner: int, add: Join) -> Tensor:
    return reduce(add, parts)


def _tree(parts: Sequence[Tensor], owner: int, add: Join) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    pairs = [add(*parts[at : at + 2]) if at + 1 < len(parts) else parts[at] for at in range(0, len(parts), 2)]
    return _tree(pairs, owner, add)


ORDERS = {"ring": _ring, "tree": _tree, "rank_order": _rank_order}
DEFAULT = "ring"
_present = DEFAULT


def add_in(order: str) -> None:
    """Let every operation that begins from now on in this process add in this order, one of `ORDERS`."""
    global _present
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; allowed: {', '.join(ORDERS)}")
    _present = order


def present() -> str:
    """Return the order of operations that begin now."""
    return _present


def total(parts: Sequence[Tensor], owner: int, order: str, operation: str = "SUM") -> Tensor:
    """Return what a reduction makes of all ranks' tensors, which are in rank order.

    Args:
        parts: of W ranks, of one shape and dtype.
        owner: the rank that the result belongs to; only `ring` asks for it.
        order: one of `ORDERS`.
        operation: as `torch.distributed.ReduceOp` names it. AVG multiplies by 1 / W before it adds, as NCCL does.
    """
    join = OPERATIONS[operation]
    if operation == "AVG":
        parts = [part * (1 / len(parts)) if part.is_floating_point() else part for part in parts]
    result = ORDERS[order](parts, owner, _in_float32(join) if parts[0].dtype in FLOAT8 else join)
    return result // len(parts) if operation == "AVG" and not result.is_floating_point() else result


def _in_float32(join: Join) -> Join:
    """Torch adds no 8-bit numbers: each addition is made in float32 and rounded."""
    return lambda a, b: join(a.float(), b.float()).to(a.dtype)


def operation_of(opts: Any) -> str:
    """The name of a reduction. Raises ValueError for one that is not here."""
    found = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    name = next((name for name in OPERATIONS if found == getattr(dist.ReduceOp, name)), None)
    if name is None:
        raise ValueError(f"ranks that share a GPU have no reduction {found}; use one of {', '.join(OPERATIONS)}")
    return name
