"""Flash attention in Triton whose backward is two kernels, one for dq, one for dk and dv: every sum in one order."""

from accuracy.kernel.triton.available import TritonKnobs

KERNEL = TritonKnobs
