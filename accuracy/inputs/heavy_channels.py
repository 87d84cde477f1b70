"""Keys with a few large channels, the same ones at every token: what key caches of trained models look like.

Liu et al. 2024 (KIVI, arXiv 2402.02750, figure 2) and Hooper et al. 2024 (KVQuant, arXiv 2401.18079, section 3.1)
show keys with outlier channels fixed over the tokens of a head, and values without. Every channel of a head's keys
has a scale of its own, exp(sigma N(0, 1)), divided by the head's root mean square of them: scores keep the variance
of Gaussian inputs, but come from a few products. q, v and dout are standard normal.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Options:
    """sigma: standard deviation of the logarithm of a key channel's scale."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not 0 <= self.sigma < float("inf"):
            raise ValueError(f"sigma={self.sigma}; allowed: numbers from 0")


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    if tensor != "k":
        return generator.standard_normal(shape)
    scale = np.exp(options.sigma * generator.standard_normal((1, 1, *shape[2:])))
    scale /= np.sqrt(np.mean(scale**2, axis=3, keepdims=True))
    return generator.standard_normal(shape) * scale
