"""Flash attention in Triton that goes on from a running state: a ring merges nothing and rounds out once, at its end.

ring-flash-attention's issue 42 names it as the alternative to joining partials outside of the kernel.
"""

from accuracy.kernel.triton import available


class TritonCarry(available.TritonKnobs):
    """Its backward is the split one."""

    carries = True


KERNEL = TritonCarry
