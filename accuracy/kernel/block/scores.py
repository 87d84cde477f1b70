"""Scores of a block out of torch products, and what their gradient is multiplied with on its way back through a cap."""

import torch
from torch import Tensor


def scores(
    query: Tensor, keys: Tensor, scale: float, hidden: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Scaled (and capped) scores (..., rows, columns), hidden ones at -inf, and d score / d (scale q k^T), None for 1.

    query (..., rows, D), keys (..., columns, D) in the dtype of the arithmetic; hidden (rows, columns).
    """
    products = (query @ keys.mT).mul_(scale)
    slope = None
    if softcap is not None:
        ratio = torch.tanh(products / softcap)
        products, slope = ratio * softcap, 1 - ratio.square()
    return (products if hidden is None else products.masked_fill_(hidden, -torch.inf)), slope
