"""Tied row maxima and values of one sign: where rounding to 16 bits is biased (Qiu and Yao 2025, arXiv 2510.04212).

Tokens come in pairs with the same key, q points at a direction that the pairs of one half of them share, so several
weights of a row are the largest alike; all values are negative. The sum of a few equal weights times values needs one
bit more than the values have, and small weights of the same sign push its rounding one way.
"""

import numpy as np

STRENGTH = 3.0  # of the shared direction in q and k: scores of its tokens stand well above the others'


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    values = generator.standard_normal(shape)
    if tensor == "v":
        return -np.abs(values) - 0.5
    if tensor == "dout":
        return values
    values[..., 0] = STRENGTH
    if tensor == "k":
        first = np.arange(shape[1]) // 2 * 2  # a pair has its first token's key
        values = values[:, first]
        values[:, (first // 2) % 2 == 1, :, 0] = -STRENGTH
    return values
