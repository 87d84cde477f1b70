"""Independent entries spread evenly over an interval, [0, 1) by default: `torch.rand`, with which xformers tests.

All of one sign, so that out is a mean that does not shrink with the length, and every weight is near 1 / length.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Options:
    """low, high: the interval of q, k, v and dout."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not -float("inf") < self.low < self.high < float("inf"):
            raise ValueError(f"low={self.low}, high={self.high}; allowed: numbers, low below high")


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64 in [low, high), shape (B, S, heads, D)."""
    return options.low + (options.high - options.low) * generator.random(shape)
