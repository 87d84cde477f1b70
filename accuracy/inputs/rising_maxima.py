"""Scores that rise along the keys: every block of keys has a larger row maximum than all before it.

An online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867) then rescales its sums at every block, and
FlashAttention-4 where the rise passes its threshold. Keys and queries have a part along (1, ..., 1) / sqrt(D), the
keys' growing with their position: under the default scale the score of key j is N(0, 1 - 1/D) + rise j / S. v and dout
are standard normal.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Lt


@dataclass(frozen=True)
class Options:
    """rise: by how much the scores of a row rise from the first key to the last; below 0 they fall."""

    rise: Annotated[float, Gt(-math.inf), Lt(math.inf)] = 32.0


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    values = generator.standard_normal(shape)
    if tensor not in "qk":
        return values
    values -= values.mean(axis=3, keepdims=True)
    part = math.sqrt(abs(options.rise) / math.sqrt(shape[3]))  # of each entry: D part^2 / sqrt(D) is the whole rise
    if tensor == "q":
        return values + part
    return values + math.copysign(part, options.rise) * (np.arange(shape[1]) / shape[1])[None, :, None, None]
