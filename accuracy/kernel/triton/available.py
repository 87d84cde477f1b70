"""Flash attention in Triton: three kernels (`PARTS`), where they run and what they can do. Imports no triton."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from accuracy.kernel.base import Abilities, Kernel, KernelKnobs


@dataclass(frozen=True)
class TritonKernel:
    """See `accuracy.kernel.base.Kernel`. forward: `forward.attend`; backward: `backward.split` or `backward.fused`."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `accuracy.kernel.base.FoldingKernel`. All: a program has one tile of one item, and no tile is cut."""
        return calls


@dataclass(frozen=True)
class CarryingTritonKernel(TritonKernel):
    """See `accuracy.kernel.base.CarryingKernel`. carry: `forward.carry`."""

    carry: Callable[..., None]


class TritonKnobs(KernelKnobs):
    """The backward is two kernels, one for dq, one for dk and dv: every sum has one order. There are no knobs.

    fused: its backward is one kernel, whose dq is not deterministic; carries: it is a `CarryingKernel`.
    """

    fused: ClassVar[bool] = False
    carries: ClassVar[bool] = False

    def abilities(self, device: str) -> Abilities:
        """bfloat16, float16 and float32 (no TF32), head_dim to 256 in multiples of 8, float32 partials and gradients.

        On the CPU only in Triton's interpreter, which has no bfloat16 products.
        """
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if device != "cuda" and not interpreted:
            return Abilities(missing="needs a CUDA device; use kernel=torch_flash or kernel=eager")
        if importlib.util.find_spec("triton") is None:
            return Abilities(missing="needs triton, which comes with torch for CUDA; pip install triton")
        return Abilities(
            dtypes=("float16", "float32") if interpreted else ("bfloat16", "float16", "float32"),
            partial_dtypes=("float32",),
            head_dim_max=256,
            head_dim_multiple=8,
            deterministic=not self.fused,
            carries=self.carries,
        )

    def build(self, device: str) -> Kernel:
        """The launchers, which import triton."""
        from accuracy.kernel.triton import backward, forward

        if self.carries:
            return CarryingTritonKernel(forward.attend, backward.split, forward.carry)
        return TritonKernel(forward.attend, backward.fused if self.fused else backward.split)


class TritonFused(TritonKnobs):
    """The backward is one kernel over tiles of keys; dq is summed by atomic adds in float32.

    It has five products a tile in place of the split form's seven, but the adds finish in any order: dq varies from run
    to run.
    """

    fused = True


class TritonCarry(TritonKnobs):
    """It goes on from a running state: a ring merges nothing and rounds out once, at its end. The backward is split.

    ring-flash-attention's issue 42 names it as the alternative to joining partials outside of the kernel.
    """

    carries = True


PARTS = {
    "triton_split_backward": SimpleNamespace(KERNEL=TritonKnobs),
    "triton_fused_backward": SimpleNamespace(KERNEL=TritonFused),
    "triton_carry": SimpleNamespace(KERNEL=TritonCarry),
}


@cache
def one_pass() -> ModuleType | None:
    """What does in one pass over memory what torch does in several; None where there is no triton."""
    try:
        from accuracy.kernel.triton import one_pass
    except ImportError:
        return None
    return one_pass


def cut_products(x: Tensor) -> ModuleType | None:
    """The same for sums of products that are cut; None too where x is not on a GPU, or not float32."""
    if not x.is_cuda or x.dtype != torch.float32 or one_pass() is None:
        return None
    from accuracy.kernel.triton import cut_products

    return cut_products


def fp8_cast(x: Tensor) -> ModuleType | None:
    """The same for the casts to 8 bits; None too where x is not on a GPU, or not of contiguous numbers."""
    if not x.is_cuda or x.stride(-1) != 1 or one_pass() is None:
        return None
    from accuracy.kernel.triton import fp8_cast

    return fp8_cast
