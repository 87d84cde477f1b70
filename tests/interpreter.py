"""Triton's interpreter on the CPU: Triton kernels run as numpy, one program after another, where there is no GPU.

Must be prepared before anything imports triton. The interpreter has no bfloat16: it rounds towards zero, and `tl.dot`
multiplies the bit patterns.
"""

import os

import torch


def prepare() -> None:
    """Switch it on where there is no CUDA device, for this process and those that it starts."""
    if torch.cuda.is_available():
        return
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    patch = interpreter._patch_lang_tensor

    def patch_for_new_numpy(tensor, scope) -> None:
        """Triton 3.6 takes int() of arrays of one element, which numpy 2.4 refuses (triton-lang/triton #9171)."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_for_new_numpy
