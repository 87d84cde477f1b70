"""A probe with an exact answer: q = 0, so every visible key weighs the same; k, v and dout are standard normal.

lse is the logarithm of the number of keys that a row sees, out the mean of their values.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    return np.zeros(shape) if tensor == "q" else generator.standard_normal(shape)
