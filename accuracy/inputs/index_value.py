"""A probe with an exact answer: q = 0 and V spells each key's position in binary, so out says which keys were seen.

Entry d of a value is bit d of the position (modulo the width), as +1 or -1. A row's out is the mean over its keys:
swapped, repeated and missing keys change it, where their number alone need not. k and dout are standard normal.
"""

import numpy as np


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    if tensor == "q":
        return np.zeros(shape)
    if tensor != "v":
        return generator.standard_normal(shape)
    bit = np.arange(shape[3]) % max(1, (shape[1] - 1).bit_length())
    code = (np.arange(shape[1])[:, None] >> bit) & 1
    return np.broadcast_to(2.0 * code[None, :, None, :] - 1.0, shape).copy()
