"""Keys with a few large channels, the same ones at every token: what key caches of trained models look like.

Liu et al. 2024 (KIVI, arXiv 2402.02750, figure 2), Hooper et al. 2024 (KVQuant, arXiv 2401.18079, section 3.1). Each
channel of a head's keys has a scale exp(sigma N(0, 1)) over the head's root mean square of them: scores keep the
variance of Gaussian inputs, but come from a few products. q, v and dout are standard normal.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt


@dataclass(frozen=True)
class Options:
    """sigma: standard deviation of the logarithm of a key channel's scale."""

    sigma: Annotated[float, Ge(0), Lt(np.inf)] = 1.0


def draw(generator: np.random.Generator, shape: tuple[int, ...], tensor: str, options: Options) -> np.ndarray:
    """float64, shape (B, S, heads, D)."""
    if tensor != "k":
        return generator.standard_normal(shape)
    scale = np.exp(options.sigma * generator.standard_normal((1, 1, *shape[2:])))
    scale /= np.sqrt(np.mean(scale**2, axis=3, keepdims=True))
    return generator.standard_normal(shape) * scale
