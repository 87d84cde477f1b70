"""Entries of U[0, 1) and dout = 1: what `torch.rand` and `out.sum().backward()` in many tests amount to.

Scores hardly differ and dq and dk nearly cancel: a tolerance that suits such inputs may let anything pass.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    return np.ones(shape) if tensor == "dout" else generator.random(shape)
