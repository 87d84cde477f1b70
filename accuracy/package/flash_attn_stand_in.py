"""flash-attn's functions on a kernel of ours: a package's orchestration apart from flash-attn, on CPUs and in float32.

Names and arguments of `flash_attn.flash_attn_interface` 2.8. Layouts are flash-attn's: q, out (B, Sq, H, D), k, v (B,
Sk, Hk, D), lse (B, H, Sq); packed sequences (T, heads, D), lse (H, T). Gradients are written in place.
"""

from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel

Outputs = tuple[Tensor, Tensor, None, None]  # out, lse, the dropout mask, the random state
VERSION = "2.8.3"  # whose signatures these are
LOW_LEVEL = (
    "_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward",
)  # fmt: skip


def low_level(kernel: Any, module: ModuleType) -> dict[str, Any]:
    """The low-level functions whose names a module has imported."""
    return {name: getattr(interface(kernel), name) for name in LOW_LEVEL if hasattr(module, name)}


@cache
def interface(kernel: Any) -> ModuleType:
    """The module in the place of `flash_attn.flash_attn_interface`, one a kernel: packages cache by function."""
    module = ModuleType("flash_attn.flash_attn_interface", "our kernel under flash-attn's names")
    for function in (*_batched(kernel), *_packed(kernel), _differentiable(kernel)):
        setattr(module, function.__name__, function)
    return module


def package(kernel: Any) -> ModuleType:
    """The module in the place of `flash_attn`."""
    module, inner = ModuleType("flash_attn", "our kernel under flash-attn's name"), interface(kernel)
    vars(module).update(__version__=VERSION, flash_attn_interface=inner, flash_attn_func=inner.flash_attn_func)
    return module


def modules(kernel: Any) -> dict[str, ModuleType]:
    """Both, by the names under which they are imported."""
    return {"flash_attn": package(kernel), "flash_attn.flash_attn_interface": interface(kernel)}


def _batched(kernel: Kernel) -> tuple[Any, Any]:
    """Plain functions: packages read their signatures."""

    def _flash_attn_forward(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
    ) -> Outputs:  # fmt: skip
        _only_plain(dropout_p, window_size_left, window_size_right, softcap, alibi_slopes, causal)
        out, lse = kernel.forward(q, k, v, scale=softmax_scale, causal=causal, out_dtype=q.dtype)
        return out, lse, None, None

    def _flash_attn_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor,
        dv: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
        rng_state: Tensor | None = None,
    ) -> None:  # fmt: skip
        _only_plain(dropout_p, window_size_left, window_size_right, softcap, alibi_slopes, causal)
        gradients = kernel.backward(
            dout, q, k, v, out, softmax_lse, scale=softmax_scale, causal=causal, gradient_dtype=q.dtype
        )
        for given, gradient in zip((dq, dk, dv), gradients, strict=True):
            given.copy_(gradient)

    return _flash_attn_forward, _flash_attn_backward


def _packed(kernel: Kernel) -> tuple[Any, Any]:
    batched_forward, batched_backward = _batched(kernel)

    def _flash_attn_varlen_forward(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
        return_softmax: bool = False,
    ) -> Outputs:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)
        outs, lses = [], []
        for rows, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
            out, lse, *_ = batched_forward(q[None, rows], k[None, keys], v[None, keys], *rest, return_softmax)
            outs.append(out[0])
            lses.append(lse[0])
        return torch.cat(outs), torch.cat(lses, dim=1), None, None

    def _flash_attn_varlen_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor,
        dv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
        deterministic: bool = False, rng_state: Tensor | None = None,
    ) -> None:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)
        for rows, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
            batched_backward(
                dout[None, rows], q[None, rows], k[None, keys], v[None, keys], out[None, rows],
                softmax_lse[None, :, rows], dq[None, rows], dk[None, keys], dv[None, keys], *rest, deterministic,
            )  # fmt: skip

    return _flash_attn_varlen_forward, _flash_attn_varlen_backward


def _sequences(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> list[tuple[slice, slice]]:
    """The rows of each packed sequence and the keys they see."""
    rows, keys = ([slice(a, b) for a, b in pairwise(borders.tolist())] for borders in (cu_seqlens_q, cu_seqlens_k))
    return list(zip(rows, keys, strict=True))


class _Attend(torch.autograd.Function):
    """The kernel, once, for autograd."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, how: dict[str, Any]) -> Tensor:
        out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **how)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.kernel, ctx.how = kernel, how
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dout,) = gradients
        q, k, v, out, lse = ctx.saved_tensors
        return *ctx.kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **ctx.how), None, None


def _differentiable(kernel: Kernel) -> Any:
    def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
    ) -> Tensor:  # fmt: skip
        _only_plain(dropout_p, *window_size, softcap, alibi_slopes, causal)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out: Tensor = _Attend.apply(q, k, v, kernel, {"scale": scale, "causal": causal})
        return out

    return flash_attn_func


def _only_plain(
    dropout: float, left: int, right: int, softcap: float, alibi_slopes: Tensor | None, causal: bool
) -> None:
    windowed = (left, right) not in ((-1, -1), (-1, 0 if causal else -1))  # a causal mask is a right side of 0
    if dropout or windowed or softcap or alibi_slopes is not None:
        raise NotImplementedError("the stand-in for flash-attn has no dropout, window, soft cap or ALiBi")
