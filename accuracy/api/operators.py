"""Which torch operators does a function run in a dtype? Where they are the same in float32 and in 16 bits, and float32
is right, what is off in 16 bits is rounding."""

from collections.abc import Collection
from typing import Any

import pandas as pd
import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOVES = {"_to_copy", "clone", "copy_", "_unsafe_view", "detach", "alias", "lift_fresh"}  # a cast adds or spares them


class Watched(TorchDispatchMode):
    """Call fn and note the torch operators of its forward, by the dtype of its first tensor. An autograd.Function of
    its own is another operator in each dtype: what its backward does is not seen here."""

    def __init__(self, fn: Any, name: str) -> None:
        super().__init__()
        self.fn, self.__wrapped__, self.__name__ = fn, getattr(fn, "forward", fn), name  # a module's signature
        self.seen = dict[torch.dtype, set[str]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operator, unless it moves or views."""
        if not func.is_view and func.overloadpacket.__name__ not in MOVES:
            self.names.add(str(func))
        return func(*args, **(kwargs or {}))

    def __call__(self, *tensors: Any, **how: Any) -> Any:
        """Return what fn returns."""
        dtype = next(x.dtype for x in tree_leaves((tensors, how)) if isinstance(x, torch.Tensor))
        self.names = self.seen.setdefault(dtype, set())
        with self:
            found = self.fn(*tensors, **how)
        known: set[Any] = {None}
        nodes: set[Any] = {x.grad_fn for x in tree_leaves(found) if isinstance(x, torch.Tensor)}
        while nodes := nodes - known:
            known |= nodes
            self.names |= {f"{each} of {dtype}" for each in nodes if isinstance(each, BackwardCFunction)}
            nodes = {following for each in nodes for following, _ in each.next_functions}
        return found

    def are_alike(self) -> bool:
        """Return whether all dtypes had the same operators, products among them."""
        first = self.seen.get(torch.float32, set())
        return any("mm." in name for name in first) and all(each == first for each in self.seen.values())


def have_same_errors(one: pd.DataFrame, other: pd.DataFrame, dtypes: Collection[str]) -> bool:
    """Return whether two tables have equal errors in these dtypes. Compiled code is not run under `Watched`, but its
    source is, which may be right where the code is wrong."""
    keys = ["dtype", "seed", "inputs", "tensor", "rank"]
    first, second = (rows[rows["dtype"].isin(dtypes)].sort_values(keys, ignore_index=True) for rows in (one, other))
    return bool(first["error_rel"].equals(second["error_rel"]))
