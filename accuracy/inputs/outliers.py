"""Gaussian entries with rare large ones in q, k and v, as FlashAttention-3 was measured on.

N(0, 1) + N(0, 100) Bernoulli(0.001): Shah et al. 2024 (arXiv 2407.08608), section 4.3. dout stays N(0, 1).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Options:
    """rate: share of entries that get an outlier; scale: its standard deviation."""

    rate: float = 0.001
    scale: float = 10.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not 0 <= self.rate <= 1 or not 0 < self.scale < float("inf"):
            raise ValueError(f"rate={self.rate}, scale={self.scale}; allowed: a rate from 0 to 1, a scale above 0")


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    values = generator.standard_normal(shape)
    if tensor != "dout":
        values += generator.standard_normal(shape) * options.scale * (generator.random(shape) < options.rate)
    return values
