"""Memory that a case's numbers are computed in, kept for the next case's.

The CPU's allocator gives freed memory back to the system, and measuring a case's peak makes it give back all
(`accuracy.device.measured`): intermediates of every case would be taken anew, page by page, which costs more than the
arithmetic on them. CUDA's allocator keeps what was freed by itself.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

KEPT_ELEMENTS = 2**24
"""Of a tensor that is kept: 128 MiB."""


class Room:
    """Float64 memory by its use. What was computed for a use is lost when the use is asked for again."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tensor] = {}

    def like(self, x: Tensor, use: Hashable) -> Tensor:
        """Unwritten, of x's shape and layout."""
        return self._taken(torch.empty_like(x, dtype=torch.float64, device="meta"), x.device, use)

    def stacked(self, ranks: Sequence[Tensor], use: Hashable) -> Tensor:
        """Tensors of one shape and any dtype, exact in float64, ranks first."""
        shape = len(ranks), *ranks[0].shape
        together = self._taken(torch.empty(shape, dtype=torch.float64, device="meta"), ranks[0].device, use)
        for place, x in zip(together, ranks, strict=True):
            place.copy_(x)
        return together

    def _taken(self, plan: Tensor, device: torch.device, use: Hashable) -> Tensor:
        if device.type != "cpu" or plan.numel() > KEPT_ELEMENTS:
            return torch.empty_like(plan, device=device)
        if use not in self._kept or self._kept[use].numel() < plan.numel():
            self._kept[use] = torch.empty(plan.numel(), dtype=torch.float64)
        return self._kept[use].as_strided(plan.shape, plan.stride())
