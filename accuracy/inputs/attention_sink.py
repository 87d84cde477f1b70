"""An attention sink: every query gives most of its weight to the first token, whose value is small.

Trained models do so (Xiao et al. 2023, arXiv 2309.17453), and the sink's value has a small norm (Gu et al. 2024, arXiv
2410.10781, section 3): out is a small sum of what little weight the other keys get. The sink's key points in a
direction that no other key has a part in, and every query has the same part in it: under the default scale its score is
ln S + 1/2 + ln(weight / (1 - weight)) in every row. The other scores are N(0, 1 - 1/D), so S of them add up to nearly
S exp(1/2), and the sink has the share `weight` of a row with S keys, more in rows with fewer. dout is standard normal.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Options:
    """weight: the sink's share of a row with S keys; value: the size of its value's entries beside others' 1."""

    weight: float = 0.9
    value: float = 0.1

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not 0 < self.weight < 1 or not 0 <= self.value < float("inf"):
            raise ValueError(
                f"weight={self.weight}, value={self.value}; allowed: a weight between 0 and 1, a value from 0"
            )


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D). With fewer queries than keys, S in the sink's score is the queries' number."""
    values = generator.standard_normal(shape)
    if tensor == "v":
        values[:, 0] *= options.value
    if tensor in "qk":
        length, dim = shape[1], shape[3]
        values -= values.mean(axis=3, keepdims=True)  # the sink's direction is (1, ..., 1) / sqrt(D)
        if tensor == "q":
            score = math.log(length) + 0.5 + math.log(options.weight / (1 - options.weight))
            values += score / math.sqrt(dim)
        else:
            values[:, 0] = 1.0  # of norm sqrt(D), as the other keys: q k^T / sqrt(D) is the score
    return values
