"""A probe with an exact answer: V = 1 and dout = 1, so dq = dk = 0, and dv is what each key weighs over all rows.

dout V^T and delta are the same number, D, and cancel; what is left is rounding. q and k are standard normal.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    return np.ones(shape) if tensor in ("v", "dout") else generator.standard_normal(shape)
