"""Flash attention in Triton whose backward is one kernel over tiles of keys; dq is summed by atomic adds in float32.

Five products a tile in place of the split form's seven, but the adds finish in any order: dq varies from run to run.
"""

from accuracy.kernel.base import Abilities, Kernel, KernelKnobs
from accuracy.kernel.triton import available


class TritonFusedBackward(KernelKnobs):
    """No knobs."""

    def abilities(self, device: str) -> Abilities:
        """As every Triton kernel here; dq is not deterministic."""
        return available.abilities(device, deterministic=False)

    def build(self, device: str) -> Kernel:
        """The launchers, which import triton."""
        from accuracy.kernel.triton import backward, forward

        return available.TritonKernel(forward.attend, backward.fused)


KERNEL = TritonFusedBackward
