"""ring-flash-attn's functions with its TorchScript merge as written: CUDA's fuser would round elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accuracy.package import ring_flash_attn as package
from accuracy.package.ring_flash_attn import DISTRIBUTION, llama3, llama3_ring, ring, stripe, unsupported, zigzag
from accuracy.variant.base import Rank

__all__ = ["DISTRIBUTION", "llama3", "llama3_ring", "ring", "stripe", "surroundings", "unsupported", "zigzag"]


@contextmanager
def surroundings(rank: Rank) -> Iterator[None]:
    with package.surroundings(rank), torch.jit.optimized_execution(False):
        yield
