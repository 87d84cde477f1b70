"""Scores so far apart that a row is nearly one-hot: what breaks merges that exponentiate a difference of lse.

q and k are N(0, std^2), so scores spread by std^2. At 6, the lse of two blocks differ by more than 88.7 for many rows,
where exp overflows float32 (EasyContext #14, ring-flash-attention #30 and #34). v and dout are standard normal.
"""

from dataclasses import dataclass

import numpy as np

from accuracy.core.kinds import Positive


@dataclass(frozen=True)
class Options:
    """std: standard deviation of q's and k's entries."""

    std: Positive = 6.0


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    return generator.standard_normal(shape) * (options.std if tensor in "qk" else 1.0)
