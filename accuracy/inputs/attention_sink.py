"""An attention sink: every query gives most of its weight to the first token, whose value is small.

As in trained models (Xiao et al. 2023, arXiv 2309.17453; Gu et al. 2024, arXiv 2410.10781, section 3). No other key has
a part in the direction of the sink's key, and every query has the same part in it: under the default scale its score is
ln S + 1/2 + ln(weight / (1 - weight)). S other scores of N(0, 1 - 1/D) add up to nearly S exp(1/2): the sink's share is
`weight` in a row with S keys, more in rows with fewer. dout is standard normal.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt


@dataclass(frozen=True)
class Options:
    """weight: the sink's share of a row with S keys; value: the size of its value's entries beside others' 1."""

    weight: Annotated[float, Gt(0), Lt(1)] = 0.9
    value: Annotated[float, Ge(0), Lt(math.inf)] = 0.1


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D). With fewer queries than keys, S in the sink's score is the queries' number."""
    values = generator.standard_normal(shape)
    if tensor == "v":
        values[:, 0] *= options.value
    if tensor in "qk":
        values -= values.mean(axis=3, keepdims=True)  # the sink's direction is (1, ..., 1) / sqrt(D)
    if tensor == "q":
        score = math.log(shape[1]) + 0.5 + math.log(options.weight / (1 - options.weight))
        values += score / math.sqrt(shape[3])
    if tensor == "k":
        values[:, 0] = 1.0  # of norm sqrt(D), as the other keys: q k^T / sqrt(D) is the score
    return values
