"""A probe with an exact answer: q = 0, so every visible key weighs the same.

lse is the logarithm of the number of keys that a row sees, out the mean of their values: a key that is dropped or
counted twice shows in both. k, v and dout are standard normal.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    return np.zeros(shape) if tensor == "q" else generator.standard_normal(shape)
