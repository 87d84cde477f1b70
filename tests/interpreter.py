"""Triton's interpreter on the CPU: Triton kernels run as numpy, one program after another, where there is no GPU.

Must be prepared before anything imports triton. The interpreter has no bfloat16: it rounds towards zero, and `tl.dot`
multiplies the bit patterns.
"""

import importlib.util
import os

import torch


def prepare() -> None:
    """Switch it on where there is no CUDA device, for this process and those that it starts."""
    if torch.cuda.is_available():
        return
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton") is not None:
        from accuracy.kernel.triton import available

        available.mend()
