"""Scores that rise along the keys: every block of keys has a larger row maximum than all before it.

An online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867) rescales what it has summed at every block then,
where on Gaussian inputs the first block nearly settles the maximum; FlashAttention-4 rescales only past a threshold,
so a rise decides whether it ever does. Keys and queries have a part along (1, ..., 1) / sqrt(D), the keys' growing
with their position: under the default scale the score of key j is N(0, 1 - 1/D) + rise j / S. v and dout are standard
normal.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Options:
    """rise: by how much the scores of a row rise from the first key to the last; below 0 they fall."""

    rise: float = 32.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not abs(self.rise) < float("inf"):
            raise ValueError(f"rise={self.rise}; allowed: a finite number")


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    length, dim = shape[1], shape[3]
    values -= values.mean(axis=3, keepdims=True)
    part = math.sqrt(abs(options.rise) / math.sqrt(dim))  # of each entry: D part^2 / sqrt(D) is the whole rise
    if tensor == "q":
        return values + part
    return values + math.copysign(part, options.rise) * (np.arange(length) / length)[None, :, None, None]
