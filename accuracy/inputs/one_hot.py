"""A probe that spells pairs: every row is a unit vector, so out holds the softmax's weights, one key in each dimension.

Token s of head h is 1 in dimension s + S h (modulo the width) and 0 elsewhere, a query counted from the last dimension:
where no code is both a query's and a key's, all scores are 0 and all weights of a row are alike. With the S tokens of
all heads of a group in the width, dq, dk and dv hold one pair of a query and a key in each element too. The same for
every seed.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    _, length, heads, width = shape
    place = (np.arange(length)[:, None] + length * np.arange(heads)) % width
    return np.broadcast_to(np.eye(width)[width - 1 - place if tensor == "q" else place], shape).copy()
