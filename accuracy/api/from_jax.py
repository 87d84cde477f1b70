"""`accuracy.from_jax`: a JAX function as a function of torch tensors, which every entry takes."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import ConfigError
from accuracy.kernel import in_jax

NO_GRADIENT = ("reverse-mode", "JVP", "VJP")
"""In JAX's message where a function has no gradient; Pallas' has no words."""


def from_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a JAX function as one that measure, diagnose, assert_accurate, drift and the others take.

    Args:
        fn: `fn(q, k, v, *, ...)` -> out or (out, lse), of JAX arrays, jitted or not. It gets arrays on the tensors' own
            device, without a copy where memory allows it: q (B, S, H, D), k and v (B, S, Hk, D), or another `layout=`;
            and by its own names what a function of torch tensors gets (causal, scale, sinks, bias ...), tensors as
            arrays. It is one of one device: ranks of torch cannot share its work.

    Returns:
        A function of torch tensors with fn's signature. Its gradients are those of jax.vjp; of a function that JAX
        cannot differentiate the forward alone is measured. Calls with float64 are computed with jax_enable_x64; all
        other settings are the process's own, so float32 is multiplied in TF32 on a GPU unless
        jax_default_matmul_precision says otherwise.

    Raises:
        ConfigError: a ValueError, where JAX is not installed, or has no GPU where tensors are on one.
    """
    if not callable(fn):
        raise ConfigError(f"{type(fn).__name__} is no function; give a JAX function fn(q, k, v, *, ...)")
    _check_installed("cpu")

    def attention(*tensors: Tensor, **how: Any) -> Any:
        named = {name: x for name, x in how.items() if isinstance(x, Tensor)}
        plain = {name: x for name, x in how.items() if name not in named}
        count, trees = len(tensors), []

        def leaves_of(*arrays: Any) -> tuple[Any, ...]:
            words = dict(zip(named, arrays[count:], strict=True))
            leaves, tree = in_jax.load().tree.flatten(fn(*arrays[:count], **words, **plain))
            trees.append(tree)
            return tuple(leaves)

        _check_installed(tensors[0].device.type if tensors else "cpu")
        leaves = _Differentiable.apply(leaves_of, *tensors, *named.values())
        return in_jax.load().tree.unflatten(trees[-1], leaves)

    wrapped = functools.update_wrapper(attention, fn)
    wrapped.one_device = True  # type: ignore[attr-defined]
    return wrapped


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaves_of: Callable[..., tuple[Any, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.wanted = [at for at, wants in enumerate(ctx.needs_input_grad[1:]) if wants]
        ctx.dtype, ctx.device = tensors[0].dtype, tensors[0].device
        with _in_width_of(ctx.dtype):
            arrays = in_jax.to_jax(*tensors)

            def of_wanted(*mine: Any) -> tuple[Any, ...]:
                every = dict(enumerate(arrays)) | dict(zip(ctx.wanted, mine, strict=True))
                return leaves_of(*every.values())

            differentiated = None
            if ctx.wanted:
                differentiated = _differentiated(of_wanted, [arrays[at] for at in ctx.wanted])
            leaves, ctx.pull = differentiated or (leaves_of(*arrays), None)
            found = in_jax.to_torch(*leaves)
        if ctx.pull is None:
            ctx.mark_non_differentiable(*found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with _in_width_of(ctx.dtype):
            found = in_jax.to_torch(*ctx.pull(in_jax.to_jax(*gradients)))
        given = dict(zip(ctx.wanted, found, strict=True))
        return None, *(given.get(at) for at in range(len(ctx.needs_input_grad) - 1))


def _differentiated(fn: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return what fn gives and the function of its gradients; None where JAX cannot differentiate it."""
    try:
        return in_jax.load().vjp(fn, *arrays)
    except Exception as error:  # JAX has no one kind of them
        if isinstance(error, NotImplementedError) or any(mark in str(error) for mark in NO_GRADIENT):
            return None
        if isinstance(error, AssertionError) and not str(error):
            return None
        raise


def _in_width_of(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Inside, JAX has float64 if the tensors do: without it, it makes float32 of them and says nothing."""
    wide: AbstractContextManager[Any] = in_jax.load().enable_x64(True) if dtype == torch.float64 else nullcontext()
    return wide


def _check_installed(device: str) -> None:
    if missing := in_jax.missing(device):
        raise ConfigError(f"from_jax {missing}")
