"""How many bits does a sum keep? Three terms L, s, -L among zeros: the sum is s only if L + s was not rounded to L.

With L = 2^14 and s = 2^(14 - t), a sum in p bits (rounding to nearest, ties to even) keeps s for t < p and loses it
from t = p on. Sums are split over lanes, tiles and trees in ways that could join L with -L before s; so all orders of
(L, s, -L, 0) are tried, and the worst counts (rounding knows no sign, so 12 of the 24 are enough). t runs along the 64
channels of one tensor: one call shows the whole curve. Each sum is compared with what s alone gives in the same place.
"""

from itertools import permutations

import torch
from torch import Tensor

LARGE = 2.0**14  # L + L is below float16's largest number
STEPS = 64  # t = 0 .. 63, the channels
SIGNS = (1.0, 0.0, -1.0, None)  # of L; None: s
ORDERS = tuple(order for order in permutations(SIGNS) if order.index(1.0) < order.index(-1.0))  # one a batch item
NAMES = {8: "bfloat16", 11: "float16", 24: "float32", 53: "float64"}


def terms(large: bool) -> Tensor:
    """(12 orders, 4 places, 64 channels) float64: the terms with the large ones, or s alone."""
    small = LARGE * torch.exp2(-torch.arange(STEPS, dtype=torch.float64))
    return torch.stack(
        [
            torch.stack([small if sign is None else torch.full_like(small, sign * LARGE * large) for sign in order])
            for order in ORDERS
        ]
    )


def bits(with_large: Tensor, alone: Tensor) -> int:
    """Bits that every order keeps: the number of first channels in which s survives. Arguments (12, 64).

    Channels in which s alone is lost (below the dtype's smallest number) end the count.
    """
    with_large, alone = with_large.double().cpu(), alone.double().cpu()
    kept = ((with_large - alone).abs() <= 0.01 * alone.abs()) & (alone != 0)
    lost = (~kept.all(0)).nonzero()
    return int(lost[0]) if len(lost) else STEPS


def told(kept: dict[str, int]) -> str:
    """Bits by distance of the terms: one format where all agree, else each with the distances it holds for."""
    distances: dict[str, list[str]] = {}
    for distance, count in kept.items():
        distances.setdefault(named(count), []).append(distance)
    if len(distances) == 1:
        return next(iter(distances))
    return ", ".join(f"{text} {' and '.join(names)}" for text, names in distances.items())


def named(count: int) -> str:
    """A number of bits with the format that has it; tensor cores keep one or two more than float32."""
    for precision, name in NAMES.items():
        if count == precision or (precision >= 24 and precision < count <= precision + 2):
            return f"{name} ({count} bits)"
    return f"{count} bits"
