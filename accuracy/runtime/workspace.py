"""Memory that a case's numbers are computed in, kept for the next case's.

Measuring a case's peak makes the CPU's allocator give freed memory back: to take it anew, page by page, would cost more
than the arithmetic on it. CUDA's allocator keeps what was freed by itself.
"""

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

KEPT_ELEMENTS = 2**24  # of a tensor that is kept: 128 MiB


class Workspace:
    """Float64 memory by its use. What was computed for a use is lost when the use is asked for again."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tensor] = {}

    def like(self, x: Tensor, use: Hashable) -> Tensor:
        """Unwritten, of x's shape and layout."""
        stride = x.stride() if x.is_contiguous() else torch.empty_like(x, device="meta").stride()
        return self._taken(x.shape, stride, x.device, use)

    def stacked(self, ranks: Sequence[Tensor], use: Hashable) -> Tensor:
        """Tensors of one shape and any dtype, exact in float64, ranks first."""
        first = ranks[0]
        if first.device.type != "cpu":  # where a copy a rank would be a kernel a rank
            return torch.stack(list(ranks)).double()
        flat = self._taken((len(ranks) * first.numel(),), (1,), first.device, use)
        return torch.stack(list(ranks), out=flat.view(len(ranks), *first.shape))

    def _taken(self, shape: Sequence[int], stride: Sequence[int], device: torch.device, use: Hashable) -> Tensor:
        count = math.prod(shape)
        if device.type != "cpu" or count > KEPT_ELEMENTS:
            return torch.empty_strided(shape, stride, dtype=torch.float64, device=device)
        if use not in self._kept or self._kept[use].numel() < count:
            self._kept[use] = torch.empty(count, dtype=torch.float64)
        return self._kept[use].as_strided(shape, stride)
