"""Where the Triton kernels run, and what all of them can do. Imports no triton."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor

from accuracy.kernel.base import Abilities


@dataclass(frozen=True)
class TritonKernel:
    """See `accuracy.kernel.base.Kernel`. forward: `forward.attend`; backward: `backward.split` or `backward.fused`."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        """See `accuracy.kernel.base.FoldingKernel`. All: a program has one tile of one item, and no tile is cut."""
        return calls


def abilities(device: str, *, deterministic: bool, **more: Any) -> Abilities:
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
        deterministic=deterministic,
        **more,
    )


@cache
def helper(name: str) -> ModuleType | None:
    """A file of this folder that does in one pass over memory what torch does in several, with the same roundings:
    `merge`, `block_sum`. None where there is no triton."""
    try:
        from accuracy.kernel.triton import block_sum, merge
    except ImportError:
        return None
    return {"block_sum": block_sum, "merge": merge}[name]
