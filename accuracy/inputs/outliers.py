"""Gaussian entries with rare large ones in q, k and v, as FlashAttention-3 was measured on.

N(0, 1) + N(0, 100) Bernoulli(0.001): Shah et al. 2024 (arXiv 2407.08608), section 4.3. dout stays N(0, 1).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from accuracy.core.kinds import Positive


@dataclass(frozen=True)
class Options:
    """rate: share of entries that get an outlier; scale: its standard deviation."""

    rate: Annotated[float, Ge(0), Le(1)] = 0.001
    scale: Positive = 10.0


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    values = generator.standard_normal(shape)
    if tensor != "dout":
        values += generator.standard_normal(shape) * options.scale * (generator.random(shape) < options.rate)
    return values
