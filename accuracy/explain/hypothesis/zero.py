"""Tokens, heads or dims of a tensor that are zero: a tail that no tile wrote, a gradient that was cut off.

Read off the tensor: which of them are zero where the right ones are not.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.base import Asked, Hypothesis, always

AXES = ("batch", "token", "head", "dim")  # of token layout; lse has no dims
KNOWN = 2  # more fitted numbers than those of each token, so that ranks and blocks are named before their tokens


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """All else being right."""
    for base, predicts in asked.finals():
        for name, predict in predicts.items():
            x, right = asked.returned[name], predict()
            for axis in range(1, x.dim()):
                lost = _all_zero(x, axis) & ~_all_zero(right, axis)
                if lost.any():
                    shape = [-1 if other == axis else 1 for other in range(x.dim())]
                    made = right.masked_fill(lost.view(shape), 0.0)
                    places = f"{_said(lost, AXES[axis])} of {len(lost)}"
                    yield Hypothesis(
                        f"zero in some {AXES[axis]}s", f"{name} is zero in {places}{base}", {name: always(made)},
                        places, KNOWN + int(lost.sum()),
                    )  # fmt: skip


def _all_zero(x: Tensor, axis: int) -> Tensor:
    """Of each place along the axis, whether all is zero there."""
    return (x == 0).transpose(0, axis).flatten(1).all(1)


def _said(chosen: Tensor, one: str) -> str:
    """`token 3`, `tokens 16 to 29`, `tokens 0, 7, 9 and 4 more`."""
    places = torch.nonzero(chosen).flatten().tolist()
    if len(places) == 1:
        return f"{one} {places[0]}"
    if places[-1] - places[0] == len(places) - 1:
        return f"{one}s {places[0]} to {places[-1]}"
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"{one}s {', '.join(map(str, places[:3]))}{more}"
