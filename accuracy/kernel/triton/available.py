"""Flash attention in Triton: three kernels (`PARTS`), where they run and what they can do. Imports no triton.

On a CPU kernels run in Triton's interpreter, which `mend` makes do what the hardware does.
"""

import os
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor

from accuracy.kernel.base import NEEDS_CUDA, Abilities, Gradients, How, Kernel, package_missing
from accuracy.kernel.block.running_state import SoftmaxState

NEEDS_TRITON = "triton, which comes with torch for CUDA; pip install triton"


def interpreting() -> bool:
    """Whether Triton's interpreter stands in for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class TritonKernel(Kernel):
    """The backward is two kernels, one for dq, one for dk and dv: every sum has one order. There are no knobs.

    fused: its backward is one kernel, whose dq is not deterministic.
    """

    fused: ClassVar[bool] = False

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32 (no TF32), head_dim to 256 in multiples of 8, float32 partials and gradients.

        On the CPU only in Triton's interpreter, which has no bfloat16 products.
        """
        if device != "cuda" and not interpreting():
            return Abilities(missing=NEEDS_CUDA)
        if missing := package_missing("triton", NEEDS_TRITON):
            return Abilities(missing=missing)
        return Abilities(
            dtypes=("float16", "float32") if interpreting() else ("bfloat16", "float16", "float32"),
            partial_dtypes=("float32",), head_dim_max=256, head_dim_multiple=8, deterministic=not self.fused,
            carries=hasattr(self, "carry"),
        )  # fmt: skip

    def build(self, device: str) -> Kernel:
        """On a CPU the interpreter is mended."""
        if device != "cuda":
            mend()
        return self

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `flash_fold.foldable`. All: a program has one tile of one item, and no tile is cut."""
        return calls

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        from accuracy.kernel.triton.forward import attend

        return attend(q, k, v, scale=how.scale, causal=how.causal, out_dtype=how.dtype)

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        from accuracy.kernel.triton.backward import gradients

        scale, causal, dtype = how.scale, how.causal, how.dtype
        return gradients(dout, q, k, v, out, lse, scale=scale, causal=causal, gradient_dtype=dtype, fused=self.fused)


class TritonFused(TritonKernel):
    """The backward is one kernel over tiles of keys; dq is summed by atomic adds in float32.

    It has five products a tile in place of the split form's seven, but the adds finish in any order: dq varies from run
    to run.
    """

    fused = True


class TritonCarry(TritonKernel):
    """It goes on from a running state: a ring merges nothing and rounds out once, at its end. The backward is split.

    ring-flash-attention's issue 42 names it as the alternative to joining partials outside of the kernel.
    """

    def carry(self, state: SoftmaxState, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> None:
        """See `accuracy.kernel.triton.forward.carry`."""
        from accuracy.kernel.triton.forward import carry

        carry(state, q, k, v, **how)


PARTS = {
    "triton_split_backward": SimpleNamespace(KERNEL=TritonKernel),
    "triton_fused_backward": SimpleNamespace(KERNEL=TritonFused),
    "triton_carry": SimpleNamespace(KERNEL=TritonCarry),
}


@cache
def one_pass() -> ModuleType | None:
    """The module that merges in one pass over memory where torch takes several; None where there is no triton."""
    try:
        from accuracy.kernel.triton import one_pass
    except ImportError:
        return None
    return one_pass


@cache
def mend() -> None:
    """Once a process, where kernels are interpreted, before the first one runs: Triton 3.6 takes int() of arrays of one
    element, which numpy 2.4 refuses (triton-lang/triton #9171)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_for_new_numpy(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_for_new_numpy
