"""What every kernel offers, and how its stated abilities turn into the reason why a case is unsupported.

A kernel's file has `KERNEL`, a subclass of `Kernel`; configs/kernel/NAME.yaml names the file, and nothing else.
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Part, Problem
from accuracy.core.dtype import FORMATS, accumulation_dtype
from accuracy.core.masks import Window
from accuracy.kernel.block.sight import Sight

Gradients = Iterable[Tensor]  # dq, dk, dv


@dataclass(frozen=True)
class Abilities:
    """What a kernel can do on a device. missing: why it cannot run at all, or empty."""

    dtypes: tuple[str, ...] = ()
    partial_dtypes: tuple[str, ...] = ()  # beyond the inputs' own dtype: what out and gradients can come in
    head_dim_min: int = 1
    head_dim_max: int | None = None
    head_dim_multiple: int = 1
    deterministic: bool = True
    carries: bool = False  # has `carry`
    short_sums: bool = False  # sums 16-bit gradients in 16 bits: what another's function is not compared with
    features: tuple[str, ...] = ()  # of FEATURES
    missing: str = ""

    def unsupported(
        self, kernel: str, dtype: str, head_dim: int, partials: set[str], features: Mapping[str, str] | None = None
    ) -> str | None:
        """Why the kernel cannot serve such a case, or None. features: `Problem.features`, each with its setting."""
        multiple = self.head_dim_multiple
        reasons = {
            self.missing: bool(self.missing),
            f"has no {dtype} here; it has {', '.join(self.dtypes)}": dtype not in self.dtypes,
            f"takes head_dim from {self.head_dim_min}, not {head_dim}": head_dim < self.head_dim_min,
            f"takes head_dim up to {self.head_dim_max}, not {head_dim}": head_dim > (self.head_dim_max or head_dim),
            f"takes head_dim in multiples of {multiple}, not {head_dim}": head_dim % multiple,
        }
        if reason := next((reason for reason, applies in reasons.items() if applies), ""):
            return f"kernel {kernel} {reason}"
        for feature, setting in (features or {}).items():
            if feature in (*FEATURES, "attn_mask") and feature not in self.features:
                return f"kernel {kernel} has no {feature} here: drop {setting} or use kernel=eager"
        for partial in sorted(partials - {dtype}):
            if partial not in self.partial_dtypes:
                allowed = ", ".join(self.partial_dtypes) or f"{dtype} only"
                return f"kernel {kernel} cannot return {partial} partials for {dtype} inputs; it returns {allowed}"
        return None


SCORES_AT_ONCE = {"cpu": 2**19, "cuda": 2**24}
"""Scores of all heads that a kernel which works in blocks keeps in memory: on a CPU no more than its cache holds."""
NEEDS_CUDA = "needs a CUDA device; use kernel=torch_flash or kernel=eager"
ALL_DTYPES = tuple(FORMATS)
FLASH = Abilities(dtypes=("bfloat16", "float16"), head_dim_max=256, head_dim_multiple=8)
FEATURES = ("window", "softcap", "head_dim_v")
"""Features of a problem that its blocks hand on to the kernel."""


@dataclass(frozen=True)
class How:
    """What a call asks for beside its tensors. dtype: of out or of the gradients; others: see `Kernel`."""

    scale: float
    causal: bool
    dtype: torch.dtype
    window: Window | None = None
    softcap: float | None = None
    mask: Tensor | None = None
    dbias: Tensor | None = None

    def sight(self, q: Tensor, k: Tensor) -> Sight:
        """Which keys the queries q (B, Sq, H, D) see of k (B, Sk, Hk, D)."""
        left, right = self.window or (None, 0 if self.causal else None)
        return Sight(q.shape[1], k.shape[1], left, right)


@dataclass(frozen=True)
class Kernel:
    """Attention on one device: its knobs, which YAML sets by name, and what it can do with them.

    A subclass has `_forward` and `_backward`, whose results are rounded to the dtype asked for here, or `build`. Masks:
    full, or causal aligned at the bottom right (Sq <= Sk).

    With the feature `head_dim_v` v, out, dout and dv have another head dim than q and k. With the feature `window` it
    also takes `window=(left, right)` with causal=False (see `accuracy.core.masks.Block`; every row sees a key), with
    `softcap` `softcap=c`: scores become c tanh(scale q k^T / c). With `attn_mask` it takes `mask`, (1 or B, 1 or H, Sq,
    Sk): true where a key is seen, or numbers that are added to the scores; with `dbias` its backward adds the gradient
    of these to `dbias`, (1 or B, 1 or H, 1 or Sq, 1 or Sk).

    One that can go on from a running state has `carry` (see `RunningState`); one that may do several calls as one, side
    by side in its batch, has `foldable` (see `flash_fold`); of others, a call stays a call.
    """

    def abilities(self, device: str) -> Abilities:
        """What the kernel can do on `cpu` or `cuda`."""
        raise NotImplementedError

    def without_tf32(self, kernel: str, device: str) -> str:
        """Why a kernel of this name is unsupported on a device with its knob `tf32`, or empty."""
        asked = getattr(self, "tf32", False) and device == "cpu"
        return f"has no tf32 on the CPU; set kernel.{kernel}.tf32=false" if asked else ""

    def build(self, device: str) -> "Kernel":
        """The kernel, ready to be called; itself where it has `_forward` and `_backward`."""
        return self

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """The number of scores, of all heads, that the kernel keeps in memory at a time: an upper estimate."""
        return SCORES_AT_ONCE[device]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype,
        window: Window | None = None, softcap: float | None = None, mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """out (B, Sq, H, D) in `out_dtype` and lse (B, H, Sq), natural log, in the accumulation dtype, of q
        (B, Sq, H, D), k and v (B, Sk, Hk, D) in one dtype; query head h reads key/value head h // (H / Hk)."""
        out, lse = self._forward(q, k, v, How(scale, causal, out_dtype, window, softcap, mask))
        return out.to(out_dtype), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float,
        causal: bool, gradient_dtype: torch.dtype, window: Window | None = None, softcap: float | None = None,
        mask: Tensor | None = None, dbias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D) in `gradient_dtype`, for out and lse over ALL keys of each query."""
        how = How(scale, causal, gradient_dtype, window, softcap, mask, dbias)
        dq, dk, dv = self._backward(dout, q, k, v, out, lse, how)
        return dq.to(gradient_dtype), dk.to(gradient_dtype), dv.to(gradient_dtype)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        raise NotImplementedError


def package_missing(module: str, needed: str) -> str:
    """Why a kernel is unsupported without an installed module, asked without importing it; empty: it is there."""
    return "" if importlib.util.find_spec(module) else f"needs {needed}"


def square(how: How, k: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (B, Sq, H, D) with rows of zeros in front, as many as keys, where the mask is causal: for kernels that
    align it at the top left. The rows' dout is zero, so they add nothing to any gradient."""
    missing = k.shape[1] - tensors[0].shape[1] if how.causal else 0
    return tuple(F.pad(x, (0, 0, 0, 0, missing, 0)) if missing else x for x in tensors)


def gradients_by_autograd(
    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of one block of attention by autograd, for out and lse over ALL keys of each query.

    Kernels whose backward takes no out and lse know those of the block only. With w = exp(block lse - lse), the
    gradients of the whole are those of the block for d block_out = w dout and
    d block_lse = w rowsum(dout (block_out - out)), because P = w block_P. Of a single block they are the kernel's own,
    exactly; in a ring, w dout is rounded once more.

    Args:
        forward: q, k, v -> out (B, Sq, H, D) and lse (B, H, Sq), both differentiable; it runs once more, for its graph.
        dout, q, k, v, out, lse: as `Kernel.backward` takes them.

    Returns:
        dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D) in the inputs' dtype.
    """
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        block_out, block_lse = forward(*leaves)
    share = torch.exp(block_lse.detach() - lse)
    outside = (dout * (block_out.detach().to(lse.dtype) - out)).sum(-1).transpose(1, 2)
    dblock_out = (dout * share.unsqueeze(-1).transpose(1, 2)).to(block_out.dtype)
    return torch.autograd.grad((block_out, block_lse), leaves, (dblock_out, share * outside))


def dtype_of(word: str, like: Tensor) -> torch.dtype:
    """The dtype of a name, of `input` (that of `like`) or of `accumulate` (in which its products are summed)."""
    name = str(like.dtype).removeprefix("torch.")
    dtype: torch.dtype = getattr(torch, {"input": name, "accumulate": accumulation_dtype(name)}.get(word, word))
    return dtype


def kernel_of(part: Part) -> Kernel:
    """The kernel in a part's file, its knobs set."""
    kernel: Kernel = plugins.build_options(plugins.load(part.source), part.options)
    return kernel
