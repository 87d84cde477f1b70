"""Torch tensors to JAX and back through DLPack, without a copy where memory allows it. JAX is an optional extra.

Products of float32 are in float32 inside `exactly` only: the process's own JAX settings are left alone. JAX takes GPU
memory as it needs it, not most of it at its start.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import package_missing


def missing(device: str) -> str:
    """Why JAX cannot be used on a device, or empty."""
    missing = package_missing("jax", "jax; pip install 'attention-accuracy[jax]'")
    if not missing and device == "cuda":
        try:
            load().devices("gpu")
        except RuntimeError:
            return "needs a jax with CUDA; pip install 'jax[cuda13]'"
    return missing


def load() -> Any:
    """The module jax."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return jax


@contextmanager
def exactly() -> Iterator[None]:
    """Inside, products of float32 are computed without TF32."""
    with load().default_matmul_precision("highest"):
        yield


def to_jax(*tensors: Tensor) -> tuple[Any, ...]:
    """Return the tensors as JAX arrays on the same device."""
    return tuple(load().dlpack.from_dlpack(x.detach().contiguous()) for x in tensors)


def to_torch(*arrays: Any) -> tuple[Tensor, ...]:
    """Return the arrays as torch tensors."""
    return tuple(torch.from_dlpack(x) for x in load().block_until_ready(arrays))
