"""Two tied row maxima and values of one sign: where rounding to 16 bits is biased (Qiu and Yao 2025, arXiv 2510.04212).

Tokens come in pairs with one key, each query points at the pair before its own: two weights are the largest alike.
Values are uniform between -2 and -1, so that rounding the true answer is unbiased. The sum of two equal weights times
values needs one bit more than the values have, and the small weights, of the same sign, push its rounding one way.
Directions are the same for every seed.
"""

import numpy as np

SCORE = 20.0  # of a pair under the default scale; others' spread is 20 / sqrt(D): in all they weigh 1e-7 to 1e-4


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: None) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    if tensor == "dout":
        return generator.standard_normal(shape)
    if tensor == "v":
        return -1.0 - generator.random(shape)
    _, length, _, dim = shape
    pair = np.arange(length) // 2
    signs = np.random.Generator(np.random.Philox(length)).integers(0, 2, (pair[-1] + 1, dim))
    directions = (2.0 * signs - 1.0) * np.sqrt(SCORE / np.sqrt(dim))
    if tensor == "k":
        return np.broadcast_to(directions[pair][None, :, None, :], shape).copy()
    aim = directions[np.maximum(pair - 1, 0)][None, :, None, :]
    return aim * generator.uniform(0.8, 1.2, shape)  # rows of one score would all have their lse rounded to one side
