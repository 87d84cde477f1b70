"""Flash attention in Triton that goes on from a running state: a ring merges nothing and rounds out once, at its end.

ring-flash-attention's issue 42 names it as the alternative to joining partials outside of the kernel. Its backward is
the split one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from accuracy.kernel.base import Abilities, CarryingKernel, KernelKnobs
from accuracy.kernel.triton import available


@dataclass(frozen=True)
class TritonCarry(available.TritonKernel):
    """See `accuracy.kernel.base.CarryingKernel`. carry: `forward.carry`."""

    carry: Callable[..., None]


class TritonCarryKnobs(KernelKnobs):
    """No knobs."""

    def abilities(self, device: str) -> Abilities:
        """As every Triton kernel here; deterministic, and it carries."""
        return available.abilities(device, deterministic=True, carries=True)

    def build(self, device: str) -> CarryingKernel:
        """The launchers, which import triton."""
        from accuracy.kernel.triton import backward, forward

        return TritonCarry(forward.attend, backward.split, forward.carry)


KERNEL = TritonCarryKnobs
