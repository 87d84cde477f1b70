"""Flash attention in Triton whose backward is two kernels, one for dq, one for dk and dv: every sum in one order."""

from accuracy.kernel.base import Abilities, Kernel, KernelKnobs
from accuracy.kernel.triton import available


class TritonSplitBackward(KernelKnobs):
    """No knobs."""

    def abilities(self, device: str) -> Abilities:
        """As every Triton kernel here; deterministic."""
        return available.abilities(device, deterministic=True)

    def build(self, device: str) -> Kernel:
        """The launchers, which import triton."""
        from accuracy.kernel.triton import backward, forward

        return available.TritonKernel(forward.attend, backward.split)


KERNEL = TritonSplitBackward
