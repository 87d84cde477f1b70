"""Which device computes a case's numbers? The case's own; for small tensors of a GPU, the processor.

A comparison is hundreds of operations on a few numbers each. On a GPU every one of them is a launch, and every number
read is a wait for all that was launched, by this process and by those that share the GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.runtime import arithmetic
from accuracy.runtime.device import move
from accuracy.world.base import Results

MOST_PRODUCTS = 2**27
"""Of elements of q and k, in all heads, that a processor takes on: 0.3 s for a reference and all that is made of it."""
MOST_ELEMENTS = 2**21
"""Of k, in all query heads: 0.2 s, as each is in a hundred operations; of one query's products they are all."""
ALONE = 16
"""By so much a processor takes on less for a process that has the GPU alone: 20 ms, as long as a GPU needs for its
launches. Where processes share one, each waits for what the others launched."""


def compute_device(case: Case, alone: bool = False) -> str:
    """cpu or cuda. alone: whether no other process of this run is on the GPU. What is compared with other paths, or
    between runs of other shapes (an observer says so by `OTHER_SHAPES`), stays on the case's device."""
    of_other_shapes = any(getattr(plugins.load(each.source), "OTHER_SHAPES", False) for each in case.observers)
    pairs, dim = case.problem.pairs, max(case.problem.head_dim, case.problem.value_dim)
    most = min(MOST_PRODUCTS, MOST_ELEMENTS * case.problem.queries) // (ALONE if alone else 1)
    on_cpu = pairs * dim <= most and case.against is None and not of_other_shapes
    return "cpu" if on_cpu else case.device


@contextmanager
def single_threaded(case: Case, device: str) -> Iterator[None]:
    """Use one thread where the processor computes for a GPU: last digits depend on their number."""
    if device == case.device:
        yield
        return
    with arithmetic.computing_with(1, "cpu"):
        yield


def move_results(results: Sequence[Results], device: str) -> list[Results]:
    """Move every rank's tensors to a device, by one transfer for each dtype."""
    kinds: dict[torch.dtype, dict[int, Tensor]] = {}
    for x in (x for rank in results for x in rank if x is not None and x.device.type != device):
        kinds.setdefault(x.dtype, {})[id(x)] = x
    moved: dict[int, Tensor] = {}
    for each in kinds.values():
        moved.update(zip(each, move([*each.values()], device), strict=True))
    return [tuple(moved.get(id(x), x) for x in rank) for rank in results]
