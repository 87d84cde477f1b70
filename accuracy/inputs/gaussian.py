"""Independent standard normal entries, times a knob: what most projects test with."""

from dataclasses import dataclass

import numpy as np

from accuracy.core.kinds import Positive


@dataclass(frozen=True)
class Options:
    """std: standard deviation of q, k, v and dout."""

    std: Positive = 1.0


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """N(0, std^2), float64, shape (B, S, heads, D)."""
    return generator.standard_normal(shape) * options.std
