"""The reference of a problem's inputs: its mask, its sinks and its dropout are handed to `float64.attention`."""

from collections.abc import Callable

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.inputs.drawing import Inputs
from accuracy.reference import float64
from accuracy.reference.float64 import Reference
from accuracy.runtime import given_mask
from accuracy.runtime.dropout import Dropout


def compute(problem: Problem, inputs: Inputs, seed: int) -> Reference:
    """The reference of a problem's inputs; seed: of a dropout."""
    return float64.attention(
        *inputs.tensors, scale=problem.softmax_scale, **problem.seen_by, softcap=problem.softcap,
        sinks=problem.sink_logits, mask=given_mask.in_four(problem, inputs.q.dtype, inputs.q.device),
        dropped=None if problem.dropout is None else _dropped(problem.dropout, seed, inputs.q),
        of_bias=given_mask.of_gradient(problem) or (1, 1, 0, 0),
    )  # fmt: skip


def _dropped(rate: float, seed: int, q: Tensor) -> Callable[[int, int, slice, slice], Tensor]:
    like = q.new_empty(0, dtype=torch.float64)

    def factors(item: int, head: int, queries: slice, keys: slice) -> Tensor:
        places = (torch.arange(each.start, each.stop) for each in (queries, keys))
        mask = Dropout(rate, seed).at(*places).of_heads(head)
        return mask.kept(range(item, item + 1), 1, like)[0, 0] * mask.scale

    return factors
